"""Quantize weights and activations to 8 bits by ONNX Runtime's static quantization."""

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
    """Return the model with pairs of QuantizeLinear and DequantizeLinear.

    Activations become unsigned bytes, with ranges from the samples. Weights become signed bytes, with a scale
    for each output channel. The nodes named in `kept` stay unchanged.
    """
    tools = importlib.import_module("onnxruntime.quantization")
    with tempfile.TemporaryDirectory(prefix="tunefarm-quantize-") as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        onnx.save(proto, source)
        # ONNX Runtime also computes scales of values that stay floats, and those may be infinite.
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
    """Passes samples to ONNX Runtime, with the interface of its CalibrationDataReader."""

    def __init__(self, samples: Samples) -> None:
        self._left: Iterator[dict[str, NDArray[Any]]] = iter(samples)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._left, None)
