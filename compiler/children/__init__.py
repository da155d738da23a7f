"""Child processes with limits, in which TVM works on strangers' models and traces."""
