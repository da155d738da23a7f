"""Quantize a network as its users do: ONNX Runtime's static quantization, calibrated with random inputs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

NUM_SAMPLES = 4


def quantize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with bytes between its operators: unsigned activations, signed weights with a scale
    for each output channel. The same model gives the same bytes."""
    with tempfile.TemporaryDirectory() as folder:
        exported, prepared, quantized = (str(Path(folder) / name) for name in ("a.onnx", "b.onnx", "c.onnx"))
        onnx.save(model, exported)
        quant_pre_process(exported, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            quantized,
            _RandomInputs(model),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        return onnx.load(quantized)


class _RandomInputs(CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto) -> None:
        self._inputs = model.graph.input
        self._rng = np.random.default_rng(0)
        self._left = NUM_SAMPLES

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        self._left -= 1
        return None if self._left < 0 else {value.name: self._random(value) for value in self._inputs}

    def _random(self, value: onnx.ValueInfoProto) -> NDArray[Any]:
        tensor = value.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type == TensorProto.FLOAT:
            return self._rng.standard_normal(shape, np.float32)
        return self._rng.integers(0, 2, shape)  # in range as ids, and as masks
