"""Models to try tunefarm on, and the few lines that run what it made."""
