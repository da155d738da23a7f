"""Converters of PyTorch's reductions, orders and windows that TVM's front end lacks or gets wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.formats.exported_operators import (
    REDUCTIONS,
    Convert,
    arguments,
    cast,
    extents_of,
    graph_of,
    is_float,
)
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

_HALVES = ("float16", "bfloat16")
# The types that TVM sorts in place of others.
_SORTED_AS = {
    **dict.fromkeys(_HALVES, "float32"),
    **dict.fromkeys(("bool", "uint8", "int8", "int16"), "int32"),
}


def _dtype_of(node: Any) -> str:
    """Return the element type that PyTorch recorded for a node, or for its first output."""
    value = node.meta["val"]
    return str((value[0] if isinstance(value, tuple | list) else value).dtype).removeprefix("torch.")


def _axes(given: Any, rank: int) -> list[int]:
    """Return the axes of a reduction. By default, all axes are reduced."""
    axes = [given] if isinstance(given, int) else list(given or range(rank))
    return [axis % rank for axis in axes] if rank else []


def _negative(node: Any, importer: Any) -> Any:
    """Return -x. TVM can't negate unsigned integers, which wrap around."""
    data = importer.env[node.args[0]]
    if "uint" not in str(data.ty.dtype):
        return importer.create_convert_map()[node.target.__name__](node)
    return importer.block_builder.emit(relax.op.subtract(relax.const(0, str(data.ty.dtype)), data))


def _softmax(node: Any, importer: Any) -> Any:
    """Compute softmax or log_softmax. The softmax of a scalar is exp(x - x)."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    if extents_of(data):
        return importer.create_convert_map()[node.target.__name__](node)
    zero = emit(relax.op.subtract(data, data))
    return zero if "log" in node.target.__name__ else emit(relax.op.exp(zero))


def _any(node: Any, importer: Any) -> Any:
    given, builder = arguments(node, importer), importer.block_builder
    data = given["self"]
    axes = _axes(given.get("dim"), len(extents_of(data)))
    kept = builder.emit(relax.op.not_equal(data, relax.const(0, str(data.ty.dtype))))
    count = builder.emit(relax.op.sum(cast(builder, kept, "int64"), axes, bool(given.get("keepdim"))))
    return builder.emit(relax.op.greater(count, relax.const(0, "int64")))


def _moments(node: Any, importer: Any) -> Any:
    """Compute the variance, the deviation, or the variance and the mean; those of halves in float32."""
    given, builder = arguments(node, importer), importer.block_builder
    emit, dtype, name = builder.emit, _dtype_of(node), node.target.__name__
    wide = "float32" if dtype in _HALVES else dtype
    data = cast(builder, given["self"], wide)
    shape = extents_of(data)
    axes, keeps = _axes(given["dim"], len(shape)), bool(given["keepdim"])
    correction = 1 if given["correction"] is None else given["correction"]
    count = math.prod(shape[axis] for axis in axes)
    mean = emit(relax.op.mean(data, axes, True))
    distance = emit(relax.op.subtract(data, mean))
    total = emit(relax.op.sum(emit(relax.op.multiply(distance, distance)), axes, keeps))
    # Without a degree of freedom, PyTorch divides by zero, which TVM doesn't compile.
    factor = 1 / (count - correction) if count > correction else math.inf
    variance = emit(relax.op.multiply(total, relax.const(factor, wide)))
    if name.startswith("std"):
        variance = emit(relax.op.sqrt(variance))
    if not name.startswith("var_mean"):
        return cast(builder, variance, dtype)
    mean = mean if keeps else emit(relax.op.squeeze(mean, axes))
    return [cast(builder, each, dtype) for each in (variance, mean)]


def _norm(node: Any, importer: Any) -> Any:
    """Compute a norm. The norm of order 0 counts the elements that aren't zero."""
    given, builder = arguments(node, importer), importer.block_builder
    data = given["self"]
    if given["ord"] != 0:
        return importer.create_convert_map()[node.target.__name__](node)
    dtype = _dtype_of(node)
    kept = builder.emit(relax.op.not_equal(data, relax.const(0, str(data.ty.dtype))))
    axes = _axes(given["dim"], len(extents_of(data)))
    wide = "float32" if dtype in _HALVES else dtype
    return cast(builder, builder.emit(relax.op.sum(cast(builder, kept, wide), axes, given["keepdim"])), dtype)


def _cumulative(operator: Callable[..., Any]) -> Convert:
    """Return the converter of cumsum or cumprod, which adds up in the type of the result."""

    def convert(node: Any, importer: Any) -> Any:
        given, builder, dtype = arguments(node, importer), importer.block_builder, _dtype_of(node)
        wide = "float32" if dtype in _HALVES else dtype
        data = cast(builder, given["self"], wide)
        if not extents_of(data):
            return cast(builder, data, dtype)
        return cast(builder, builder.emit(operator(data, given["dim"], wide)), dtype)

    return convert


def _sort(node: Any, importer: Any) -> list[Any]:
    """Sort as TVM does, whose sort is stable, but which sorts wide numbers only."""
    given, builder = arguments(node, importer), importer.block_builder
    data, axis, descending = given["self"], given["dim"], given["descending"]
    dtype = str(data.ty.dtype)
    ordered = cast(builder, data, _SORTED_AS.get(dtype, dtype))
    values = builder.emit(relax.op.sort(ordered, axis, descending))
    places = builder.emit(relax.op.argsort(ordered, axis, descending, "int64"))
    return [cast(builder, values, dtype), places]


def _index_reduce(node: Any, importer: Any) -> Any:
    """Combine slices of the source with those slices of the data that the index names."""
    given, graph = arguments(node, importer), graph_of(importer)
    kind = given["reduce"]
    if kind not in REDUCTIONS:
        raise UnsupportedOperator(f"the reduction '{kind}' isn't supported: divide a sum by a count")
    reduction, neutral = REDUCTIONS[kind]
    data, index, source = (Value(expr=given[name]) for name in ("self", "index", "source"))
    axis = int(given["dim"]) % data.rank
    shape = np.array([-1 if k == axis else 1 for k in range(data.rank)])
    places = graph.op("Expand", graph.op("Reshape", index, shape), np.array(source.shape))
    if not given["include_self"]:
        if not is_float(data.expr):
            raise UnsupportedOperator("include_self=False of integers isn't supported: reduce floats")
        start = np.full(source.shape, neutral).astype(numpy_dtype(data.dtype))
        data = graph.op("ScatterElements", data, places, start, axis=axis)
    return graph.op("ScatterElements", data, places, source, axis=axis, reduction=reduction).expr


def _windows(node: Any, importer: Any) -> Any:
    """Return the windows of an axis, which tensor.unfold puts side by side, with the new axis at the end."""
    given, emit = arguments(node, importer), importer.block_builder.emit
    data, size, step = given["self"], int(given["size"]), int(given["step"])
    shape = extents_of(data)
    axis = int(given["dimension"]) % max(len(shape), 1)
    if not shape:
        return emit(relax.op.reshape(data, [size]))
    first = np.arange((shape[axis] - size) // step + 1) * step
    places = first[:, np.newaxis] + np.arange(size)
    taken = emit(relax.op.take(data, relax.const(places.ravel(), "int64"), axis=axis, mode="clip"))
    apart = emit(relax.op.reshape(taken, [*shape[:axis], *places.shape, *shape[axis + 1 :]]))
    order = [k for k in range(len(shape) + 1) if k != axis + 1]
    return emit(relax.op.permute_dims(apart, [*order, axis + 1]))


def _triangle(places: Callable[..., Sequence[Any]]) -> Convert:
    """Return the converter of tril_indices or triu_indices, whose results are constants."""

    def convert(node: Any, importer: Any) -> Any:
        given = arguments(node, importer)
        found = np.stack(places(given["row"], given["offset"], given["col"]))
        return importer.block_builder.emit(relax.const(found, _dtype_of(node)))

    return convert


CONVERTERS: dict[str, Convert] = {
    "neg.default": _negative,
    **dict.fromkeys(("_softmax.default", "_log_softmax.default"), _softmax),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _any),
    **{f"{name}.correction": _moments for name in ("std", "var", "var_mean")},
    "linalg_vector_norm.default": _norm,
    "cumsum.default": _cumulative(relax.op.cumsum),
    "cumprod.default": _cumulative(relax.op.cumprod),
    **dict.fromkeys(("sort.default", "sort.stable"), _sort),
    "index_reduce.default": _index_reduce,
    "unfold.default": _windows,
    "tril_indices.default": _triangle(np.tril_indices),
    "triu_indices.default": _triangle(np.triu_indices),
}
