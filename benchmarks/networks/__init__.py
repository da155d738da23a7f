"""Compare whole networks with untuned TVM, ONNX Runtime and MetaSchedule."""
