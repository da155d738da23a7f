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
_TYPES = onnx.TensorProto
# ONNX Runtime can't pass values of these types. Values of the carrier replace them exactly, with this suffix
# in their names.
_CARRIED = "@carried"
_FLOATS_OF_A_BYTE = (
    *(_TYPES.FLOAT8E4M3FN, _TYPES.FLOAT8E4M3FNUZ),
    *(_TYPES.FLOAT8E5M2, _TYPES.FLOAT8E5M2FNUZ),
)
_CARRIERS: Mapping[int, int] = {
    **dict.fromkeys((_TYPES.BFLOAT16, *_FLOATS_OF_A_BYTE), _TYPES.FLOAT),
    **{getattr(_TYPES, name.upper()): _TYPES.INT8 for name in NARROW if "int" in name},
}
# Attributes that choose the type of a result.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


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
    proto, inputs, outputs = _with_carriers(proto, names)
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = [f"{name}{_CARRIED}" if name in outputs else name for name in names]

    def compute(given: Mapping[str, Array]) -> list[Array]:
        feed = {
            f"{name}{_CARRIED}" if name in inputs else name: (
                np.asarray(array).astype(_dtype(_CARRIERS[inputs[name]]))
                if name in inputs
                else np.asarray(array)
            )
            for name, array in given.items()
        }
        found = [np.asarray(value) for value in session.run(wanted, feed)]
        return [
            array.astype(_dtype(outputs[name])) if name in outputs else array
            for name, array in zip(names, found, strict=True)
        ]

    return compute


def _dtype(number: int) -> np.dtype[Any]:
    return onnx.helper.tensor_dtype_to_np_dtype(number)


def _with_carriers(
    proto: onnx.ModelProto, names: Iterable[str]
) -> tuple[onnx.ModelProto, Mapping[str, int], Mapping[str, int]]:
    """Return the model with carriers in place of the types in `_CARRIERS` in inputs and results. Also return
    these types, by name."""
    inputs = _carried_types(proto.graph.input)
    if not inputs and not _makes_carried(proto.graph):
        return proto, {}, {}
    types = _carried_types([*onnx.shape_inference.infer_shapes(proto).graph.value_info, *proto.graph.output])
    outputs = {name: types[name] for name in names if name in types}
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    graph = changed.graph
    for value in graph.input:
        if value.name in inputs:
            value.type.tensor_type.elem_type = _CARRIERS[inputs[value.name]]
            value.name += _CARRIED
    for position, (name, number) in enumerate(inputs.items()):
        cast = onnx.helper.make_node("Cast", [f"{name}{_CARRIED}"], [name], to=number)
        if number in _FLOATS_OF_A_BYTE:
            # Infinities stay infinite, if the type has them.
            cast.attribute.append(onnx.helper.make_attribute("saturate", 0))
        graph.node.insert(position, cast)
    for name, number in outputs.items():
        cast = onnx.helper.make_node("Cast", [name], [f"{name}{_CARRIED}"], to=_CARRIERS[number])
        graph.node.append(cast)
        graph.output.append(onnx.ValueInfoProto(name=f"{name}{_CARRIED}"))
    return changed, inputs, outputs


def _carried_types(values: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    numbers = {value.name: value.type.tensor_type.elem_type for value in values}
    return {name: number for name, number in numbers.items() if number in _CARRIERS}


def _makes_carried(graph: onnx.GraphProto) -> bool:
    return any(tensor.data_type in _CARRIERS for tensor in graph.initializer) or any(
        each.t.data_type in _CARRIERS or (each.name in _TYPE_ATTRIBUTES and each.i in _CARRIERS)
        for node in graph.node
        for each in node.attribute
    )
