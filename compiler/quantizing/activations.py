"""Quantize weights and the values between layers to bytes, by ONNX Runtime's static quantization."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.quantizing.samples import Samples


def quantize_values(proto: onnx.ModelProto, samples: Samples, kept: Collection[str]) -> onnx.ModelProto:
    """Return the model with pairs of QuantizeLinear and DequantizeLinear: unsigned bytes between layers,
    signed weights with a scale for each output channel. The nodes named in `kept` stay.

    The samples set the ranges of the values.
    """
    tools = importlib.import_module("onnxruntime.quantization")
    with tempfile.TemporaryDirectory(prefix="tunefarm-quantize-") as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        onnx.save(proto, source)
        # It also computes scales of values that stay floats, which may have infinities.
        with np.errstate(all="ignore"):
            tools.quantize_static(
                source,
                target,
                _Reader(samples),
                activation_type=tools.QuantType.QUInt8,
                weight_type=tools.QuantType.QInt8,
                per_channel=True,
                nodes_to_exclude=list(kept),
            )
        return onnx.load(target)


class _Reader:
    """Hands samples to ONNX Runtime, as its CalibrationDataReader does."""

    def __init__(self, samples: Samples) -> None:
        self._left: Iterator[dict[str, NDArray[Any]]] = iter(samples)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._left, None)
