"""Measure which ONNX operators can be imported and compute right results."""
