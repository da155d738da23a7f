"""Import ONNX models, fuse them into subgraphs and extract these as tuning tasks."""
