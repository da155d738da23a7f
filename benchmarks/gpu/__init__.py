"""Our search, MetaSchedule, PyTorch and the measured peak, on one GPU."""
