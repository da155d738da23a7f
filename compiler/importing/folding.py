"""Compute nodes of constants while a model is imported.

Shapes, and arithmetic on shapes, must be known during the import. NumPy computes the operators that occur
there, with exactly ONNX's results. ONNX Runtime computes other nodes of constants. A node that neither can
compute is imported normally, and TVM folds it later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from compiler.constants.fold import MAX_CONSTANT_BYTES
from compiler.importing.onnx_runtime import load_session
from compiler.importing.spec import NARROW
from compiler.importing.values import Array, Node, numpy_dtype

# Larger results of convolutions and recurrent layers are left to TVM, because computing them here takes too
# long.
SLOW_TO_FOLD = {
    *("Conv", "ConvInteger", "ConvTranspose", "DeformConv", "QLinearConv"),
    *("GRU", "LSTM", "RNN", "GridSample", "RoiAlign", "Resize", "Upsample"),
}
MAX_SLOW_ELEMENTS = 1 << 16
RANDOM = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
}
# The domains whose operators are computed here.
FOLDED_DOMAINS = ("", "ai.onnx.ml")
# A version of ONNX's file format that also older versions of ONNX Runtime read.
_IR_VERSION = 10


def fold(node: Node) -> list[Array] | None:
    """Return the values of a node's named outputs, in order; None if they can't be computed now.

    Raises ValueError and IndexError for invalid inputs.
    """
    if node.kind in RANDOM or any(attribute.HasField("g") for attribute in node.proto.attribute):
        return None
    if node.domain == "" and node.kind in ("Shape", "Size"):
        return [_shape(node)]
    # Weights stay bytes, for dot products of bytes, and stay packed in blocks.
    if node.kind == "DequantizeLinear" and (
        node.input(0).dtype in ("int8", "uint8", "int32") or node.attributes.get("block_size", 0)
    ):
        return None
    constants = [value.constant for value in node.inputs if value is not None]
    known = [constant for constant in constants if constant is not None]
    if len(known) < len(constants) or node.domain not in FOLDED_DOMAINS:
        return None
    evaluate = _EXACT.get(node.kind) if node.domain == "" else None
    if evaluate is not None:
        given = [None if value is None else value.constant for value in node.inputs]
        with np.errstate(all="ignore"):
            result = evaluate(node, given)
        if result is not None:
            return result if isinstance(result, list) else [np.asarray(result)]
    # ONNX Runtime doesn't accept or return narrow types.
    if any(str(constant.dtype) in NARROW for constant in known) or _makes_narrow(node):
        return None
    if node.kind in SLOW_TO_FOLD and sum(constant.size for constant in known) > MAX_SLOW_ELEMENTS:
        return None
    return _by_onnx_runtime(node)


def _makes_narrow(node: Node) -> bool:
    """Return whether a node's attributes name a type of less than a byte."""
    types = {onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(name)) for name in NARROW}
    return any(node.attributes.get(name) in types for name in ("to", "output_dtype", "dtype"))


def _by_onnx_runtime(node: Node) -> list[Array] | None:
    given = {f"i{number}": value for number, value in enumerate(node.inputs) if value is not None}
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    names = [f"i{number}" if f"i{number}" in given else "" for number in range(len(node.inputs))]
    proto.input[:] = names
    wanted = [name for name in node.outputs if name]
    inputs = [onnx.ValueInfoProto(name=name, type=value.onnx_type()) for name, value in given.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
    # The model's opset may be newer than ONNX Runtime, but the operator's version seldom is.
    version = node.opset
    if onnx.defs.has(node.kind, node.opset, node.domain):
        version = onnx.defs.get_schema(node.kind, node.opset, node.domain).since_version
    opsets = [onnx.helper.make_opsetid(node.domain, version)]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid("", node.scope.opsets.get("", node.opset)))
    graph = onnx.helper.make_graph([proto], "fold", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    arrays = {name: np.asarray(value.constant, order="C") for name, value in given.items()}
    try:
        results = load_session(model, wanted)(arrays)
    except Exception:  # it isn't installed, or has no kernel; the exceptions have no common class
        return None
    return None if any(result.dtype.hasobject for result in results) else results


def check_fits(shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Raise ValueError for a constant that is too large."""
    size = math.prod(shape) * dtype.itemsize
    if size > MAX_CONSTANT_BYTES:
        raise ValueError(f"it computes a constant of {size} bytes; the limit is {MAX_CONSTANT_BYTES}")


_Given = Sequence[Array | None]
_Evaluate = Callable[["Node", _Given], "Array | list[Array] | None"]


def _shape(node: Node) -> Array:
    shape = node.input(0).shape
    if node.kind == "Size":
        return np.array(math.prod(shape), np.int64)
    # Negative ends count from the last axis, and ends beyond the last axis are clipped, as in Python.
    return np.array(shape[node.attributes.get("start", 0) : node.attributes.get("end")], np.int64)


def _constant(node: Node, _given: _Given) -> Array | None:
    (name, value), *_ = node.attributes.items()
    if name == "value":
        return onnx.numpy_helper.to_array(value)
    if name == "sparse_value":
        return _dense(value)
    kinds = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    return np.array(value, kinds[name]) if name in kinds else None


def _dense(sparse: onnx.SparseTensorProto) -> Array:
    values, places = onnx.numpy_helper.to_array(sparse.values), onnx.numpy_helper.to_array(sparse.indices)
    check_fits(sparse.dims, values.dtype)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if places.ndim == 1:
        dense.reshape(-1)[places] = values
    else:
        dense[tuple(places.T)] = values
    return dense


def _constant_of_shape(node: Node, given: _Given) -> Array:
    value = node.attributes.get("value")
    number = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    shape = tuple(_required(given, 0).tolist())
    check_fits(shape, number.dtype)
    return np.full(shape, number.reshape(()), number.dtype)


def _cast(node: Node, given: _Given) -> Array | None:
    data = _required(given, 0)
    if node.kind == "CastLike":
        dtype = _required(given, 1).dtype
    else:
        if isinstance(node.attributes["to"], str):
            return None
        dtype = onnx.helper.tensor_dtype_to_np_dtype(int(node.attributes["to"]))
    if dtype.hasobject or data.dtype.hasobject:
        return None
    # Numbers of 8 bits and less saturate or wrap, as attributes say.
    if str(dtype) in NARROW:
        return None
    if str(data.dtype) in NARROW:
        data = data.astype(np.float32)
    return data.astype(dtype)


def _reshape(node: Node, given: _Given) -> Array:
    data = _required(given, 0)
    wanted = list(node.attributes["shape"]) if node.opset < 5 else _required(given, 1).tolist()
    if not node.attributes.get("allowzero", 0):
        wanted = [data.shape[k] if extent == 0 else extent for k, extent in enumerate(wanted)]
    return data.reshape(wanted)


def _flatten(node: Node, given: _Given) -> Array:
    data, axis = _required(given, 0), int(node.attributes.get("axis", 1))
    axis = axis + data.ndim if axis < 0 else axis
    return data.reshape(math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))


def _axes(node: Node, given: _Given) -> list[int] | None:
    axes = given[1] if node.opset >= 13 and len(given) > 1 else node.attributes.get("axes")
    # ONNX's own function bodies give one axis as a scalar.
    return None if axes is None else [int(axis) for axis in np.ravel(axes)]


def _squeeze(node: Node, given: _Given) -> Array:
    data, axes = _required(given, 0), _axes(node, given)
    return np.squeeze(data) if axes is None else np.squeeze(data, tuple(axes))


def _unsqueeze(node: Node, given: _Given) -> Array:
    return np.expand_dims(_required(given, 0), tuple(_axes(node, given) or ()))


def _transpose(node: Node, given: _Given) -> Array:
    return np.transpose(_required(given, 0), node.attributes.get("perm"))


def _concat(node: Node, given: _Given) -> Array:
    axis = int(node.attributes.get("axis", 1))
    return np.concatenate([_required(given, k) for k in range(len(given))], axis)


def _slice(node: Node, given: _Given) -> Array:
    data = _required(given, 0)
    if node.opset < 10:
        starts, ends = list(node.attributes["starts"]), list(node.attributes["ends"])
        axes, steps = list(node.attributes.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = _required(given, 1).tolist(), _required(given, 2).tolist()
        axes, steps = (
            otherwise if len(given) <= k or (array := given[k]) is None else array.tolist()
            for k, otherwise in ((3, list(range(len(starts)))), (4, [1] * len(starts)))
        )
    parts = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        parts[axis] = python_slice(start, end, step, data.shape[axis])
    return data[tuple(parts)]


def python_slice(start: int, end: int, step: int, extent: int) -> slice:
    """Return Python's equivalent of ONNX's slice. With a negative step, ONNX clips a start before the first
    element to the first element; Python's slice would be empty.
    """
    start, end = (place + extent if place < 0 else place for place in (start, end))
    if step > 0:
        return slice(min(max(start, 0), extent), min(max(end, 0), extent), step)
    last = min(end, extent - 1)
    return slice(min(max(start, 0), extent - 1), None if last < 0 else last, step)


def _gather(node: Node, given: _Given) -> Array:
    return np.take(_required(given, 0), _required(given, 1), axis=int(node.attributes.get("axis", 0)))


def _gather_elements(node: Node, given: _Given) -> Array:
    axis = int(node.attributes.get("axis", 0))
    return np.take_along_axis(_required(given, 0), _required(given, 1), axis)


def _expand(_node: Node, given: _Given) -> Array:
    data = _required(given, 0)
    shape = np.broadcast_shapes(data.shape, tuple(_required(given, 1).tolist()))
    check_fits(shape, data.dtype)
    return np.broadcast_to(data, shape)


def _tile(node: Node, given: _Given) -> Array | None:
    if node.opset < 6:
        return None
    data, repeats = _required(given, 0), _required(given, 1).tolist()
    check_fits([k * extent for k, extent in zip(repeats, data.shape, strict=True)], data.dtype)
    return np.tile(data, repeats)


def _range(_node: Node, given: _Given) -> Array | None:
    start, limit, delta = (_required(given, k).reshape(()) for k in range(3))
    if start.dtype.kind not in "iu":
        return None
    count = max(-(-(int(limit) - int(start)) // int(delta)), 0)
    check_fits([count], start.dtype)
    return (np.arange(count) * int(delta) + int(start)).astype(start.dtype)


def _non_zero(_node: Node, given: _Given) -> Array | None:
    data = _required(given, 0)
    return np.array(np.nonzero(data), np.int64) if data.ndim else None


def _compress(node: Node, given: _Given) -> Array:
    return np.compress(_required(given, 1), _required(given, 0), node.attributes.get("axis"))


def _dequantize(node: Node, given: _Given) -> Array | None:
    """(data - zero) * scale in float32, for types without kernels in TVM."""
    data, scale = _required(given, 0), _required(given, 1)
    zero = given[2] if len(given) > 2 else None
    if str(data.dtype) not in NARROW or node.attributes.get("output_dtype"):
        return None
    numbers, steps = data.astype(np.float32), scale.astype(np.float32)
    zeros = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))

    def spread(array: Array) -> Array:
        if array.ndim == data.ndim and block:
            return np.repeat(array, block, axis).take(range(data.shape[axis]), axis)
        if array.size == 1:
            return array.reshape(())
        return array.reshape([-1 if k == axis % data.ndim else 1 for k in range(data.ndim)])

    return ((numbers - spread(zeros)) * spread(steps)).astype(scale.dtype)


def _reduced(function: Callable[..., Any]) -> _Evaluate:
    """Return a function that reduces integers. Sums of floats depend on their order, so ONNX Runtime computes
    those."""

    def evaluate(node: Node, given: _Given) -> Array | None:
        data = _required(given, 0)
        since = 13 if node.kind == "ReduceSum" else 18
        axes = given[1] if node.opset >= since and len(given) > 1 else node.attributes.get("axes")
        keep = bool(node.attributes.get("keepdims", 1))
        is_all = axes is None or len(axes) == 0
        if data.dtype not in (np.int64, np.int32) or not data.size:
            return None
        if is_all and node.attributes.get("noop_with_empty_axes", 0):
            return data
        chosen = None if is_all else tuple(int(axis) for axis in axes)  # type: ignore[union-attr]
        return np.asarray(function(data, axis=chosen, keepdims=keep)).astype(data.dtype)

    return evaluate


def _elementwise(function: Callable[..., Any], since: int = 1, kinds: str = "biuf") -> _Evaluate:
    """Return a function that computes an elementwise operator of equally typed numbers. Before the version
    `since`, the operator broadcast differently."""

    def evaluate(node: Node, given: _Given) -> Array | None:
        arrays = [_required(given, k) for k in range(len(given))]
        if node.opset < since and node.attributes.get("broadcast", 0):
            return None
        # NumPy's functions don't know the kinds of types of ml_dtypes.
        if any(array.dtype.kind not in kinds for array in arrays):
            return None
        check_fits(np.broadcast_shapes(*(array.shape for array in arrays)), arrays[0].dtype)
        return np.asarray(function(*arrays))

    return evaluate


def _quotient(left: Array, right: Array) -> Array:
    """Divide integers towards zero, as in C."""
    if left.dtype.kind == "f":
        return np.divide(left, right)
    whole = left // right
    has_rest = whole * right != left
    return (whole + (has_rest & ((left < 0) != (right < 0)))).astype(left.dtype)


def _where(condition: Array, left: Array, right: Array) -> Array:
    return np.where(condition, left, right).astype(left.dtype)


def _mod(node: Node, given: _Given) -> Array | list[Array] | None:
    return _elementwise(np.fmod if node.attributes.get("fmod", 0) else np.mod)(node, given)


def _clip(node: Node, given: _Given) -> Array | None:
    data = _required(given, 0)
    if node.opset < 11 or data.dtype.kind not in "iu":
        return None
    for bound, function in zip(given[1:3], (np.maximum, np.minimum), strict=False):
        data = data if bound is None else function(data, bound)
    return data


def _required(given: _Given, position: int) -> Array:
    array = given[position] if position < len(given) else None
    if array is None:
        raise ValueError(f"input {position} is missing")
    return array


def _identity(_node: Node, given: _Given) -> Array:
    return _required(given, 0)


def _folded(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Return a function of any number of arrays, one after the other."""

    def over(first: Array, *rest: Array) -> Array:
        for array in rest:
            first = function(first, array)
        return first

    return over


_EXACT: Mapping[str, _Evaluate] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add, 7, "iuf"),
    "And": _elementwise(np.logical_and, 7, "b"),
    "Cast": _cast,
    "CastLike": _cast,
    "Ceil": _elementwise(np.ceil, 1, "f"),
    "Clip": _clip,
    "Compress": _compress,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DequantizeLinear": _dequantize,
    "Div": _elementwise(_quotient, 7, "iuf"),
    "Equal": _elementwise(np.equal, 7),
    "Expand": _expand,
    "Flatten": _flatten,
    "Floor": _elementwise(np.floor, 1, "f"),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Greater": _elementwise(np.greater, 7),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": _identity,
    "Less": _elementwise(np.less, 7),
    "LessOrEqual": _elementwise(np.less_equal),
    "Max": _elementwise(_folded(np.maximum), 1, "iu"),
    "Min": _elementwise(_folded(np.minimum), 1, "iu"),
    "Mod": _mod,
    "Mul": _elementwise(np.multiply, 7, "iuf"),
    "Neg": _elementwise(np.negative, 1, "if"),
    "NonZero": _non_zero,
    "Not": _elementwise(np.logical_not, 1, "b"),
    "Or": _elementwise(np.logical_or, 7, "b"),
    "Range": _range,
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sqrt": _elementwise(np.sqrt, 1, "f"),
    "Squeeze": _squeeze,
    "Sub": _elementwise(np.subtract, 7, "iuf"),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(_where),
    "Xor": _elementwise(np.logical_xor, 7, "b"),
}
