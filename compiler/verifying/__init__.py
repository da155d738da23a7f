"""Compare an imported model with what runs its format elsewhere, such as ONNX Runtime or XLA."""
