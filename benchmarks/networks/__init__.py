"""Whole networks against TVM untuned, ONNX Runtime and MetaSchedule."""
