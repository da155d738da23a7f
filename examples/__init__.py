"""Models to try tunefarm on, and a script that runs a tuned one."""
