"""What a benchmark leaves: figures with their aims, curves beside them, where and when."""
