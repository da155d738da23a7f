"""Child processes, under limits, in which strangers' models and traces meet TVM."""
