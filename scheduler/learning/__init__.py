"""Train and evaluate the cost models of device classes."""
