"""Measure which ONNX operators can be imported, with right results."""
