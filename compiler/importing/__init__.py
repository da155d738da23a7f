"""ONNX models become fused subgraphs and tuning tasks."""
