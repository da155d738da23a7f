"""Compare a compiled model with other runtimes on this machine, in turns."""
