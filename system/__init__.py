"""What every process asks of the operating system and its settings, whatever it does."""
