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


def quantize_values(
    proto: onnx.ModelProto, samples: Samples, kept: Collection[str], narrow: Collection[str] = ()
) -> onnx.ModelProto:
    """Return the model with pairs of QuantizeLinear and DequantizeLinear.

    Activations become unsigned bytes, with ranges from the samples. Weights become signed bytes, with a scale
    for each output channel; those named in `narrow` have 7 bits. The nodes named in `kept` stay unchanged.
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
                extra_options={"TensorQuantOverrides": {name: [{"reduce_range": True}] for name in narrow}},
            )
        return onnx.load(target)


def multiplied_weights(proto: onnx.ModelProto) -> dict[str, str]:
    """Return the names of constant weights by the names of the convolutions and matrix products that multiply
    by them. Grouped convolutions are left out: they are computed in floats.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    return {
        node.name: node.input[1]
        for node in proto.graph.node
        if node.op_type in ("Conv", "MatMul", "Gemm")
        and node.input[1] in constants
        and all(attribute.i == 1 for attribute in node.attribute if attribute.name == "group")
    }


class _Reader:
    """Passes samples to ONNX Runtime, with the interface of its CalibrationDataReader."""

    def __init__(self, samples: Samples) -> None:
        self._left: Iterator[dict[str, NDArray[Any]]] = iter(samples)

    def get_next(self) -> dict[str, NDArray[Any]] | None:
        return next(self._left, None)
