"""The results of a benchmark: figures with their aims, curves, and a description of the run."""
