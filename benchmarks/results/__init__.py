"""The results of a benchmark: figures with their aims, curves beside them, where and when."""
