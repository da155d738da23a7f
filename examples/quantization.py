"""Convert a network to narrower types, as users do: to int8 by ONNX Runtime's static quantization, calibrated
with random inputs, and to float16 or bfloat16 by converting every weight.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

NUM_SAMPLES = 4


def quantize(model: onnx.ModelProto, *, reduce_range: bool = False) -> onnx.ModelProto:
    """Quantize a model to 8 bits: unsigned activations, signed weights with a scale for each output channel.
    With `reduce_range`, weights have 7 bits, as ONNX Runtime recommends for x86 processors without VNNI. The
    same model gives the same bytes.
    """
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
            reduce_range=reduce_range,
        )
        return onnx.load(quantized)


def narrowed(model: onnx.ModelProto, element_type: int) -> onnx.ModelProto:
    """Return the model with all floats in another type, except its inputs and outputs. Raises ValueError for
    float constants that are not weights.
    """
    narrow, graph = onnx.ModelProto(), model.graph
    narrow.CopyFrom(model)
    if any(attribute.HasField("t") for node in graph.node for attribute in node.attribute):
        raise ValueError("only weights can be converted, not constants in nodes")
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    for weight in narrow.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            # Masks contain numbers beyond the narrower type's range.
            values = numpy_helper.to_array(weight).clip(-largest, largest)
            weight.CopyFrom(numpy_helper.from_array(values.astype(dtype), weight.name))
    floats = {
        value.name
        for value in (*graph.input, *graph.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    nodes = list(narrow.graph.node)
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [f"{name}.narrow" if name in floats else name for name in names]
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = element_type
    before = [
        helper.make_node("Cast", [value.name], [f"{value.name}.narrow"], to=element_type)
        for value in graph.input
        if value.name in floats
    ]
    after = [
        helper.make_node("Cast", [f"{value.name}.narrow"], [value.name], to=TensorProto.FLOAT)
        for value in graph.output
        if value.name in floats
    ]
    del narrow.graph.node[:], narrow.graph.value_info[:]
    narrow.graph.node.extend([*before, *nodes, *after])
    return narrow


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
