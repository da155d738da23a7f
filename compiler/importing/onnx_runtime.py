"""Run ONNX models in ONNX Runtime without optimizations, on one thread."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.spec import NARROW

Array = NDArray[Any]
# ONNX Runtime can't pass integers of less than a byte. int8 or uint8 values replace them, with this suffix in
# their names.
_BYTE = "@byte"
_NARROW = {getattr(onnx.TensorProto, name.upper()): name for name in NARROW if "int" in name}


def load_session(
    proto: onnx.ModelProto, names: Sequence[str]
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Return a function that computes the values of these names.

    Raises ImportError if ONNX Runtime isn't installed. For a model that it can't load or run, ONNX Runtime
    raises its own errors, here and in the returned function.
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # A session's arena takes a megabyte, and lives as long as a result that lies in it.
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto, inputs, outputs = _with_bytes_at_border(proto, names)
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [f"{name}{_BYTE}" if name in outputs else name for name in names]

    def compute(given: Mapping[str, Array]) -> list[Array]:
        feed = {
            f"{name}{_BYTE}" if name in inputs else name: array.astype(np.int8) if name in inputs else array
            for name, array in given.items()
        }
        found = [np.asarray(value) for value in session.run(wanted, feed)]
        return [
            array.astype(onnx.helper.tensor_dtype_to_np_dtype(outputs[name])) if name in outputs else array
            for name, array in zip(names, found, strict=True)
        ]

    return compute


def _with_bytes_at_border(
    proto: onnx.ModelProto, names: Iterable[str]
) -> tuple[onnx.ModelProto, Mapping[str, int], Mapping[str, int]]:
    """Return the model with int8 or uint8 in place of narrow integers in inputs and results. Also return the
    narrow types, by name."""
    inputs = _narrow_types(proto.graph.input)
    if not inputs and not any(map(_makes_narrow, proto.graph.node)):
        return proto, {}, {}
    types = _narrow_types([*proto.graph.output, *onnx.shape_inference.infer_shapes(proto).graph.value_info])
    outputs = {name: types[name] for name in names if name in types}
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph = changed.graph
    for value in graph.input:
        if value.name in inputs:
            value.type.tensor_type.elem_type = onnx.TensorProto.INT8
            value.name += _BYTE
    for position, (name, number) in enumerate(inputs.items()):
        graph.node.insert(position, onnx.helper.make_node("Cast", [f"{name}{_BYTE}"], [name], to=number))
    for name in outputs:
        cast = onnx.helper.make_node("Cast", [name], [f"{name}{_BYTE}"], to=onnx.TensorProto.INT8)
        graph.node.append(cast)
        graph.output.append(onnx.ValueInfoProto(name=f"{name}{_BYTE}"))
    return changed, inputs, outputs


def _narrow_types(values: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    numbers = {value.name: value.type.tensor_type.elem_type for value in values}
    return {name: number for name, number in numbers.items() if number in _NARROW}


def _makes_narrow(node: onnx.NodeProto) -> bool:
    return any(each.i in _NARROW or each.t.data_type in _NARROW for each in node.attribute)
