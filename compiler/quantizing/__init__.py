"""Quantize models of floats, and measure how much every layer loses by it."""
