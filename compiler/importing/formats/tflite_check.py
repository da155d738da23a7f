"""Check the tables of a TFLite file before TVM's front end reads them.

FlatBuffers has no verifier for Python. Its accessors follow any offset, so a damaged file would raise errors
of struct or numpy, or be read as another model.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from compiler.importing.onnx_graph import MAX_TENSOR_BYTES
from compiler.importing.spec import ModelError

_VERSION = 3
# The bits of an element, by the name of its type. Other types, such as strings, have elements of any size.
_BITS = {
    **{f"{kind}{bits}": bits for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("FLOAT16", "BFLOAT16"), 16),
    "BOOL": 8,
    "INT4": 4,
    "FLOAT32": 32,
    "FLOAT64": 64,
    "COMPLEX64": 64,
}
_BLOCKWISE = "BlockwiseQuantization"
# The code in the older field of a file whose newer field is missing.
_PLACEHOLDER = "PLACEHOLDER_FOR_GREATER_OP_CODES"


def check_tables(model: Any) -> None:
    """Raise ModelError unless all offsets, indices, shapes, names and quantizations of a model are valid."""
    place = "its first table"
    try:
        for label, table in _tables(model):
            place = label
            _read_all(table)
        if model.Version() != _VERSION:
            raise _damaged(f"it has version {model.Version()} instead of {_VERSION}")
        if not model.SubgraphsLength():
            raise _damaged("it has no graph")
        for number in range(model.SubgraphsLength()):
            place = f"graph {number}"
            _check_graph(model, model.Subgraphs(number))
        if not model.Subgraphs(0).OutputsLength():
            raise _damaged("it has no outputs")
        _check_unique_names(model.Subgraphs(0))
    except ModelError:
        raise
    except Exception as error:  # a damaged offset may cause any exception
        raise _damaged(f"{place} can't be read: an offset or a length is wrong") from error


def _damaged(what: str) -> ModelError:
    return ModelError(f"the TFLite file is damaged: {what}. Convert the model again")


def _tables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield all tables that an import reads, with their places."""
    yield "its first table", model
    for number in range(model.OperatorCodesLength()):
        yield f"operator code {number}", model.OperatorCodes(number)
    for number in range(model.BuffersLength()):
        yield f"buffer {number}", model.Buffers(number)
    for graph_number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(graph_number)
        yield f"graph {graph_number}", graph
        for number in range(graph.TensorsLength()):
            tensor = graph.Tensors(number)
            yield f"tensor {number}", tensor
            if tensor.Quantization() is not None:
                yield f"the quantization of tensor {number}", tensor.Quantization()
        for number in range(graph.OperatorsLength()):
            op = graph.Operators(number)
            yield f"operator {number}", op
            kind = name_of("BuiltinOptions", op.BuiltinOptionsType())
            if op.BuiltinOptions() is not None and kind is not None:
                options = getattr(importlib.import_module(f"tflite.{kind}"), kind)()
                options.Init(op.BuiltinOptions().Bytes, op.BuiltinOptions().Pos)
                yield f"the attributes of operator {number}", options


def _read_all(table: Any) -> None:
    for name in _fields(type(table)):
        getattr(table, name)()


def _fields(table: type) -> tuple[str, ...]:
    """Return the methods of a table that read a field and take no argument."""
    return tuple(
        name
        for name, method in vars(table).items()
        if getattr(getattr(method, "__code__", None), "co_argcount", 0) == 1 and not name.startswith("_")
    )


def _check_graph(model: Any, graph: Any) -> None:
    """Check a graph's tensors, and that each operator reads tensors that are known by then."""
    tensors = [graph.Tensors(number) for number in range(graph.TensorsLength())]
    known = {number for number, tensor in enumerate(tensors) if _check_tensor(model, tensor, number)}
    names = [_name(tensor, number) for number, tensor in enumerate(tensors)]
    inputs = _indices(graph.InputsAsNumpy())
    _check_indices("the list of inputs", inputs, len(tensors), 0)
    known.update(inputs)
    written: set[int] = set()
    for number in range(graph.OperatorsLength()):
        op = graph.Operators(number)
        if op.OpcodeIndex() >= model.OperatorCodesLength():
            raise _damaged(f"operator {number} has a code that the file doesn't list")
        label = f"operator {number} ({operator_name(model, op)})"
        if operator_name(model, op) == _PLACEHOLDER:
            raise _damaged(f"{label} has no code of an operator")
        read, outputs = _indices(op.InputsAsNumpy()), _indices(op.OutputsAsNumpy())
        _check_indices(label, [*read, *_indices(op.IntermediatesAsNumpy())], len(tensors), -1)
        _check_indices(label, outputs, len(tensors), 0)
        for tensor in read:
            if tensor >= 0 and tensor not in known:
                raise _damaged(f"{label} reads tensor '{names[tensor]}' before it is computed")
        for tensor in outputs:
            if tensor in written or tensor in inputs:
                raise _damaged(f"{label} computes tensor '{names[tensor]}', which is known already")
        written.update(outputs)
        known.update(outputs)
    outputs = _indices(graph.OutputsAsNumpy())
    _check_indices("the list of outputs", outputs, len(tensors), 0)
    for tensor in outputs:
        if tensor not in known:
            raise _damaged(f"nothing computes its output '{names[tensor]}'")


def _indices(vector: Any) -> list[int]:
    """Return a vector of indices. FlatBuffers returns 0 for a vector that is left out."""
    return [int(number) for number in vector] if isinstance(vector, np.ndarray) else []


def _check_indices(label: str, numbers: Sequence[int], count: int, least: int) -> None:
    for number in numbers:
        if not least <= number < count:
            raise _damaged(f"{label} names tensor {number}, and there are {count}")


def _check_unique_names(graph: Any) -> None:
    """TVM's front end identifies the tensors of a model by name."""
    names = [(graph.Tensors(number).Name() or b"").decode() for number in range(graph.TensorsLength())]
    for name, count in Counter(names).items():
        if count > 1:
            raise ModelError(
                f"{count} tensors of the TFLite model have the name '{name}': convert the model again, with "
                "a name of its own for each tensor"
            )


def _name(tensor: Any, number: int) -> str:
    try:
        return (tensor.Name() or b"").decode()
    except UnicodeDecodeError as error:
        raise _damaged(f"the name of tensor {number} isn't UTF-8") from error


def _check_tensor(model: Any, tensor: Any, number: int) -> bool:
    """Check a tensor. Return whether its value is known without an operator."""
    shape = _indices(tensor.ShapeAsNumpy())
    label = f"tensor '{_name(tensor, number)}'"
    if min(shape, default=0) < 0:
        raise ModelError(
            f"{label} of the TFLite model has a negative dimension in its shape {shape}: convert the model "
            "with a fixed shape"
        )
    kind = name_of("TensorType", tensor.Type())
    if kind is None:
        raise _damaged(f"{label} has the unknown element type {tensor.Type()}")
    size = -(-math.prod(shape) * _BITS.get(kind, 8) // 8)
    if size > MAX_TENSOR_BYTES:
        raise ModelError(
            f"{label} of the TFLite model has the shape {shape}, {size} bytes; the limit is "
            f"{MAX_TENSOR_BYTES}: convert a smaller model"
        )
    if tensor.Buffer() >= model.BuffersLength():
        raise _damaged(f"{label} names buffer {tensor.Buffer()}, and there are {model.BuffersLength()}")
    _check_quantization(tensor, label, shape)
    buffer = model.Buffers(tensor.Buffer())
    if buffer.Offset() > 1:
        raise ModelError(
            "the TFLite model has weights behind its tables, as files above 2 GB do; these aren't read: "
            "convert the model to ONNX"
        )
    stored = buffer.DataLength()
    if stored and kind in _BITS and tensor.Sparsity() is None and stored != size:
        raise _damaged(
            f"{label} of shape {shape} and type {kind} takes {size} bytes, and its buffer has {stored}"
        )
    return bool(stored) or bool(tensor.IsVariable()) or 0 in shape


def _check_quantization(tensor: Any, label: str, shape: Sequence[int]) -> None:
    quantization = tensor.Quantization()
    if quantization is None:
        return
    if name_of("QuantizationDetails", quantization.DetailsType()) == _BLOCKWISE:
        raise ModelError(
            f"{label} of the TFLite model is quantized in blocks, which isn't supported: convert the model "
            "with a scale for each tensor or channel"
        )
    scales, zeros = quantization.ScaleAsNumpy(), quantization.ZeroPointAsNumpy()
    if not isinstance(scales, np.ndarray):
        return
    if not len(scales):
        raise _damaged(f"{label} has an empty list of scales")
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise _damaged(f"{label} has a scale that is negative or not finite")
    zeros = zeros if isinstance(zeros, np.ndarray) else np.zeros(0)
    if len(zeros) != len(scales):
        raise _damaged(f"{label} has {len(scales)} scales and {len(zeros)} zero points")
    if np.abs(zeros).max() >= 2**31:
        raise _damaged(f"{label} has a zero point of more than 32 bits")
    axis = quantization.QuantizedDimension()
    if len(scales) > 1 and (not 0 <= axis < len(shape) or shape[axis] != len(scales)):
        raise _damaged(f"{label} of shape {list(shape)} has {len(scales)} scales along axis {axis}")


def operator_name(model: Any, op: Any) -> str:
    """Return the name of an operator's kind. A file has it in one of two fields."""
    code = model.OperatorCodes(op.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    return name_of("BuiltinOperator", number) or f"number {number}"


def name_of(enumeration: str, number: int) -> str | None:
    """Return the name of a member of an enumeration of TFLite's schema."""
    return _names(enumeration).get(number)


@functools.cache
def _names(enumeration: str) -> dict[int, str]:
    """Return the names of an enumeration of TFLite's schema by number, without the empty member."""
    members = vars(getattr(importlib.import_module(f"tflite.{enumeration}"), enumeration))
    return {number: name for name, number in members.items() if isinstance(number, int) and name != "NONE"}
