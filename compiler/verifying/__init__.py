"""Compare an imported model with a reference runtime of its format, such as ONNX Runtime or XLA."""
