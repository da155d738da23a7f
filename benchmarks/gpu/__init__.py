"""Compare our search with MetaSchedule, PyTorch and the measured peak, on one GPU."""
