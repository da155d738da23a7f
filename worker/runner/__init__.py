"""Building, verifying and timing of candidates in a child process."""
