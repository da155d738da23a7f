"""Compare an imported model with ONNX Runtime, or with ONNX's reference evaluator."""
