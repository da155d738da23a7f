"""Build, verify and time candidates in a child process."""
