"""Which of ONNX's operators can be imported, and whether what they compute is right."""
