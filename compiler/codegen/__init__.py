"""Passes over scheduled modules right before TVM generates code. No trace records them."""
