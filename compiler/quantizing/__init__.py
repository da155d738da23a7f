"""Quantize float models, and measure how much accuracy each layer loses."""
