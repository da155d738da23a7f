"""Child processes with limits, in which TVM processes untrusted models and traces."""
