"""Converters of PyTorch's operators that TVM's front end lacks or gets wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from compiler.constants.fold import constant
from compiler.importing.onnx_graph import Graph
from compiler.importing.operators import CONVERTERS as ONNX_CONVERTERS
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.row_writes import write_rows
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

# Takes the node and TVM's importer; returns a tensor, or a list of them.
Convert = Callable[[Any, Any], Any]


def cast(builder: relax.BlockBuilder, tensor: Any, dtype: str) -> Any:
    return tensor if str(tensor.ty.dtype) == dtype else builder.emit(relax.op.astype(tensor, dtype))


def is_float(tensor: Any) -> bool:
    return "float" in str(tensor.ty.dtype)


def graph_of(importer: Any) -> Graph:
    """Return the graph that imports ONNX operators into the same function."""
    graph = Graph(ONNX_CONVERTERS)
    graph.builder = importer.block_builder
    return graph


def arguments(node: Any, importer: Any) -> dict[str, Any]:
    """Return the arguments of an operator by name, with its defaults. Tensors are expressions."""
    declared = node.target._schema.arguments
    given = {one.name: one.default_value for one in declared if one.has_default_value()}
    given |= dict(zip([one.name for one in declared], importer.retrieve_args(node), strict=False))
    return given | {
        name: importer.env[value] if type(value) is type(node) else value
        for name, value in node.kwargs.items()
    }


def _elu(node: Any, importer: Any) -> Any:
    """scale * (x if x > 0, else alpha * (exp(input_scale * x) - 1)). TVM's front end leaves out the scales,
    which SELU has."""
    data, alpha, scale, input_scale = [*importer.retrieve_args(node), 1.0, 1.0, 1.0][:4]
    emit, dtype = importer.block_builder.emit, str(data.ty.dtype)
    scaled = relax.op.exp(relax.op.multiply(data, relax.const(input_scale, dtype)))
    below = relax.op.multiply(
        relax.op.subtract(scaled, relax.const(1, dtype)), relax.const(alpha * scale, dtype)
    )
    above = relax.op.multiply(data, relax.const(scale, dtype))
    return emit(relax.op.where(relax.op.greater(data, relax.const(0, dtype)), above, below))


def _sign(node: Any, importer: Any) -> Any:
    """Return the sign. PyTorch's sign of NaN is 0."""
    data, emit = importer.env[node.args[0]], importer.block_builder.emit
    dtype = str(data.ty.dtype)
    if dtype == "bool":
        return data
    zero = relax.const(0, dtype)
    below = emit(relax.op.less(data, zero))
    negative = zero if "uint" in dtype else relax.const(-1, dtype)
    others = emit(relax.op.where(below, negative, zero))
    return emit(relax.op.where(emit(relax.op.greater(data, zero)), relax.const(1, dtype), others))


def _ignoring_nan(operator: Callable[[Any, Any], Any]) -> Convert:
    """Return the converter of fmax or fmin: if one operand is NaN, the result is the other."""

    def convert(node: Any, importer: Any) -> Any:
        emit = importer.block_builder.emit
        wanted = str(node.meta["val"].dtype).removeprefix("torch.")
        left, right = (cast(importer.block_builder, importer.env[one], wanted) for one in node.args[:2])
        if not is_float(left):
            return emit(operator(left, right))
        is_nan = [emit(relax.op.not_equal(one, one)) for one in (left, right)]
        number = emit(relax.op.where(is_nan[1], left, emit(operator(left, right))))
        return emit(relax.op.where(is_nan[0], right, number))

    return convert


def _clamp(node: Any, importer: Any) -> Any:
    """Clamp between bounds. TVM's front end replaces missing bounds with infinities, which integers don't
    have.

    If the lower bound exceeds the upper one, PyTorch returns the upper bound.
    """
    given, builder = arguments(node, importer), importer.block_builder
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    least, most = given.get("min"), given.get("max")
    are_numbers = isinstance(least, int | float | None) and isinstance(most, int | float | None)
    is_crossed = are_numbers and least is not None and most is not None and least > most
    has_floats = "float" in dtype or isinstance(least, float) or isinstance(most, float)
    if are_numbers and has_floats and not is_crossed:
        return importer.create_convert_map()[node.target.__name__](node)
    data = cast(builder, given["self"], dtype)
    for bound, bounded in ((least, relax.op.maximum), (most, relax.op.minimum)):
        if bound is not None:
            is_number = isinstance(bound, int | float)
            limit = relax.const(bound, dtype) if is_number else cast(builder, bound, dtype)
            data = builder.emit(bounded(data, limit))
    return data


def _exp2(node: Any, importer: Any) -> Any:
    data = importer.env[node.args[0]]
    return importer.block_builder.emit(relax.op.power(relax.const(2, str(data.ty.dtype)), data))


def _full(node: Any, importer: Any) -> Any:
    """Return a tensor of one number. TVM can't compile `full` for NaN, infinities and numbers that float32
    lacks, so those are broadcast."""
    fill = arguments(node, importer)["fill_value" if "fill_value" in _names(node) else "s"]
    if not isinstance(fill, int | float):
        raise UnsupportedOperator("it is filled with a number that the data decides: broadcast a tensor")
    value, emit = node.meta["val"], importer.block_builder.emit
    dtype, shape = str(value.dtype).removeprefix("torch."), [int(extent) for extent in value.shape]
    number = constant(np.array(fill).astype(numpy_dtype(dtype)))
    if shape and "float" in dtype and not abs(fill) <= np.finfo(np.float32).max:
        alone = constant(np.full([1] * len(shape), fill).astype(numpy_dtype(dtype)))
        return emit(relax.op.broadcast_to(alone, shape))
    return emit(relax.op.full(shape, number, dtype)) if shape else emit(number)


def _names(node: Any) -> list[str]:
    return [one.name for one in node.target._schema.arguments]


def _product(node: Any, importer: Any) -> Any:
    given, builder = arguments(node, importer), importer.block_builder
    data = cast(builder, given["self"], str(node.meta["val"].dtype).removeprefix("torch."))
    return builder.emit(relax.op.prod(data, given["dim"], given["keepdim"]))


def _extreme(operator: Callable[..., Any]) -> Convert:
    """Return the converter of amax or amin."""

    def convert(node: Any, importer: Any) -> Any:
        given = arguments(node, importer)
        return importer.block_builder.emit(
            operator(given["self"], list(given["dim"]) or None, given["keepdim"])
        )

    return convert


def _extreme_along(name: str) -> Convert:
    """Return the converter of max or min along an axis, which returns values and indices."""
    extreme, place = getattr(relax.op, name), getattr(relax.op, f"arg{name}")

    def convert(node: Any, importer: Any) -> Any:
        given, emit = arguments(node, importer), importer.block_builder.emit
        data, axis, keeps = given["self"], given["dim"], given["keepdim"]
        # Booleans are compared as bytes.
        ordered = cast(importer.block_builder, data, "int8") if str(data.ty.dtype) == "bool" else data
        if not extents_of(data):
            return [data, relax.const(0, "int64")]
        found = cast(importer.block_builder, emit(extreme(ordered, axis, keeps)), str(data.ty.dtype))
        return [found, emit(place(ordered, axis, keeps))]

    return convert


def _upsample(mode: str, coordinates: str) -> Convert:
    """Return the converter of an interpolation. PyTorch computes positions with the given scale."""

    def convert(node: Any, importer: Any) -> Any:
        given, graph = arguments(node, importer), graph_of(importer)
        found = [given[name] for name in given if name.startswith("scale")]
        factors = [each for one in found for each in (one if isinstance(one, list | tuple) else [one])]
        data = given["input" if "input" in given else "self"]
        aligned = bool(given.get("align_corners"))
        is_scaled = len(factors) > 0 and all(factor is not None for factor in factors) and not aligned
        sizes = [int(extent) for extent in node.meta["val"].shape]
        return graph.op(
            "Resize",
            Value(expr=data),
            None,
            np.array([1, 1, *factors], np.float32) if is_scaled else None,
            None if is_scaled else np.array(sizes, np.int64),
            mode=mode,
            coordinate_transformation_mode="align_corners" if aligned else coordinates,
            nearest_mode="floor" if coordinates == "asymmetric" else "round_prefer_ceil",
        ).expr

    return convert


def _refuse_antialias(_node: Any, _importer: Any) -> Any:
    raise UnsupportedOperator(
        "antialiasing isn't supported: interpolate without antialias, or export as ONNX"
    )


_MODES, _PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def _grid_sample(node: Any, importer: Any) -> Any:
    """TVM's front end reads the grid with its coordinates as the second axis."""
    data, grid, mode, padding, is_aligned = importer.retrieve_args(node)
    return (
        graph_of(importer)
        .op(
            "GridSample",
            Value(expr=data),
            Value(expr=grid),
            mode=_MODES[mode],
            padding_mode=_PADDINGS[padding],
            align_corners=int(is_aligned),
        )
        .expr
    )


def _max_pool(node: Any, importer: Any) -> Any:
    """Max-pool with indices, or with default strides. TVM's front end supports neither."""
    if not any(user.args[1] == 1 for user in node.users) and (node.args[2:3] or [[]])[0]:
        return importer.create_convert_map()[node.target.__name__](node)
    given = arguments(node, importer)
    rank = 2 if "2d" in node.target.__name__ else 3

    def each(name: str) -> list[int]:
        numbers = list(given[name])
        return numbers * rank if len(numbers) == 1 else numbers

    return _pooled(
        importer,
        given["self"],
        kernel_shape=each("kernel_size"),
        strides=each("stride") if given["stride"] else each("kernel_size"),
        pads=each("padding") * 2,
        dilations=each("dilation"),
        ceil_mode=int(given["ceil_mode"]),
    )


def _adaptive_max_pool(node: Any, importer: Any) -> Any:
    given = arguments(node, importer)
    data, sizes = given["self"], list(given["output_size"])
    extents = extents_of(data)[-len(sizes) :]
    if any(extent % size for extent, size in zip(extents, sizes, strict=True)):
        raise UnsupportedOperator(
            f"its windows differ in size, since {tuple(extents)} isn't a multiple of {tuple(sizes)}: pool "
            "with windows of one size"
        )
    kernel = [extent // size for extent, size in zip(extents, sizes, strict=True)]
    return _pooled(importer, data, kernel_shape=kernel, strides=kernel)


def _pooled(importer: Any, data: Any, **attributes: Any) -> list[Any]:
    """Return the maxima and their places within their channel. ONNX counts places through all channels."""
    graph, shape = graph_of(importer), extents_of(data)
    rank = len(attributes["kernel_shape"])
    value, first = Value(expr=data), np.array([0], np.int64)
    is_batched = len(shape) == rank + 2
    outputs = graph.ops(
        "MaxPool", 2, value if is_batched else graph.op("Unsqueeze", value, first), **attributes
    )
    if not is_batched:
        outputs = [graph.op("Squeeze", one, first) for one in outputs]
    places = graph.op("Mod", outputs[1], np.array(math.prod(shape[-rank:]), np.int64))
    return [outputs[0].expr, places.expr]


def _average_pool(node: Any, importer: Any) -> Any:
    """Pool averages with a divisor, which TVM's front end ignores."""
    given = arguments(node, importer)
    mean = importer.create_convert_map()[node.target.__name__](node)
    if given.get("divisor_override") is None:
        return mean
    if given["ceil_mode"] or not given["count_include_pad"]:
        raise UnsupportedOperator("a divisor beside ceil_mode, or without count_include_pad, isn't supported")
    window = list(given["kernel_size"])
    rank = 2 if "2d" in node.target.__name__ else 3
    count = math.prod(window) if len(window) == rank else window[0] ** rank
    factor = relax.const(count / given["divisor_override"], str(mean.ty.dtype))
    return importer.block_builder.emit(relax.op.multiply(mean, factor))


def _copysign(node: Any, importer: Any) -> Any:
    """Return |x| with the sign bit of y, which zeros and NaN have, too."""
    given, builder, graph = arguments(node, importer), importer.block_builder, graph_of(importer)
    value = node.meta["val"]
    dtype = str(value.dtype).removeprefix("torch.")
    wide = "float64" if dtype == "float64" else "float32"
    bits = wide.replace("float", "int")
    size = graph.emit(relax.op.abs(cast(builder, given["self"], wide)))
    other = given["other"]
    if not isinstance(other, relax.Expr):
        other = relax.const(np.full((), other, wide))
    sign, least = Value(expr=cast(builder, other, wide)), np.array(np.iinfo(bits).min, bits)
    low = graph.op("BitwiseAnd", reinterpreted(graph, size, bits), ~least)
    high = graph.op("BitwiseAnd", reinterpreted(graph, sign, bits), least)
    return cast(builder, reinterpreted(graph, graph.op("BitwiseOr", low, high), wide).expr, dtype)


def _operands(node: Any, importer: Any, dtype: str) -> list[relax.Expr]:
    """Return both operands, tensors or numbers, cast to a type."""
    return [
        cast(importer.block_builder, one, dtype) if isinstance(one, relax.Expr) else relax.const(one, dtype)
        for one in importer.retrieve_args(node)[:2]
    ]


def _with_alpha(name: str) -> Convert:
    """Return the converter of x + alpha * y or x - alpha * y. TVM's front end ignores alpha."""

    def convert(node: Any, importer: Any) -> Any:
        given, builder = arguments(node, importer), importer.block_builder
        if given.get("alpha", 1) == 1:
            return importer.create_convert_map()[node.target.__name__](node)
        dtype = str(node.meta["val"].dtype).removeprefix("torch.")
        # Sums of float16 and bfloat16 are rounded only once.
        wide = "float32" if dtype in ("float16", "bfloat16") else dtype
        first, second = _operands(node, importer, wide)
        if name == "rsub":
            first, second = second, first
        scaled = builder.emit(relax.op.multiply(second, relax.const(given["alpha"], wide)))
        combine = relax.op.add if name == "add" else relax.op.subtract
        return cast(builder, builder.emit(combine(first, scaled)), dtype)

    return convert


def _group_norm(node: Any, importer: Any) -> Any:
    """Group normalization with optional weights. TVM's front end requires weights."""
    given, graph = arguments(node, importer), graph_of(importer)
    if given["weight"] is not None and given["bias"] is not None:
        return importer.create_convert_map()[node.target.__name__](node)
    dtype, channels = numpy_dtype(str(given["input"].ty.dtype)), int(given["C"])
    weight, bias = (
        np.full(channels, number, dtype) if given[name] is None else Value(expr=given[name])
        for name, number in (("weight", 1), ("bias", 0))
    )
    data, groups = Value(expr=given["input"]), int(given["group"])
    result = graph.op(
        "GroupNormalization", data, weight, bias, opset=21, num_groups=groups, epsilon=given["eps"]
    )
    return [result.expr]


def _floored(node: Any, importer: Any) -> Any:
    """Compute a remainder with the divisor's sign, or a quotient rounded down.

    For floats, PyTorch uses the exact remainder: 1.0 // 0.1 is 9, because float 0.1 times 10 exceeds 1.
    """
    is_quotient = node.target.__name__.startswith("div")
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    if is_quotient and arguments(node, importer).get("rounding_mode") != "floor":
        if "int" in dtype:
            return importer.block_builder.emit(relax.op.divide(*_operands(node, importer, dtype)))
        return importer.create_convert_map()[node.target.__name__](node)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    operands = _operands(node, importer, wide)
    if "float" not in dtype:
        operator = relax.op.floor_divide if is_quotient else relax.op.floor_mod
        return importer.block_builder.emit(operator(*operands))
    x, y = (Value(expr=one) for one in operands)
    op, zero, one = graph_of(importer).op, np.zeros((), wide), np.ones((), wide)
    rest = op("Mod", x, y, fmod=1)
    is_other = op("Xor", op("Less", rest, zero), op("Less", y, zero))
    is_other = op("And", is_other, op("Not", op("Equal", rest, zero)))
    if not is_quotient:
        return cast(importer.block_builder, op("Where", is_other, op("Add", rest, y), rest).expr, dtype)
    quotient = op("Div", op("Sub", x, rest), y)
    quotient = op("Where", is_other, op("Sub", quotient, one), quotient)
    whole = op("Floor", quotient)
    is_more = op("Greater", op("Sub", quotient, whole), np.array(0.5, wide))
    whole = op("Where", is_more, op("Add", whole, one), whole)
    found = op("Where", op("Equal", y, zero), op("Div", x, y), whole)
    return cast(importer.block_builder, found.expr, dtype)


def _shift(operator: Callable[..., Any]) -> Convert:
    """Return the converter of a shift by a tensor or a number."""

    def convert(node: Any, importer: Any) -> Any:
        wanted = str(node.meta["val"].dtype).removeprefix("torch.")
        return importer.block_builder.emit(operator(*_operands(node, importer, wanted)))

    return convert


REDUCTIONS = {
    "": ("none", 0.0),
    "sum": ("add", 0.0),
    "prod": ("mul", 1.0),
    "amax": ("max", -math.inf),
    "amin": ("min", math.inf),
}


def _as_strided(node: Any, importer: Any) -> Any:
    """Read elements at multiples of strides in memory, which the graph knows of contiguous operands only."""
    given, source = arguments(node, importer), node.args[0].meta["val"]
    start = given["storage_offset"]
    places = np.array(0 if start is None else int(start) - int(source.storage_offset()))
    for count, stride in zip(given["size"], given["stride"], strict=True):
        places = places[..., None] + np.arange(int(count)) * int(stride)
    is_inside = not places.size or (places.min() >= 0 and places.max() < source.numel())
    if not (source.is_contiguous() and is_inside):
        raise UnsupportedOperator("it reads memory in another order than its operand's: index the operand")
    emit = importer.block_builder.emit
    flat = emit(relax.op.reshape(given["self"], [-1]))
    return emit(relax.op.take(flat, relax.const(places, "int64"), axis=0, mode="clip"))


def _scatter_reduce(node: Any, importer: Any) -> Any:
    """Scatter elements, and reduce those with the same index. With include_self, the data's own elements are
    reduced, too.
    """
    given, graph = arguments(node, importer), graph_of(importer)
    default = "" if node.target.__name__ == "scatter.src" else "sum"
    kind, includes = given.get("reduce", default), given.get("include_self", True)
    if kind not in REDUCTIONS:
        raise UnsupportedOperator(f"the reduction '{kind}' isn't supported: divide a sum by a count")
    reduction, neutral = REDUCTIONS[kind]
    data, index, source = (Value(expr=given[name]) for name in ("self", "index", "src"))
    if source.shape != index.shape:
        ends, axes = np.array(index.shape, np.int64), np.arange(index.rank)
        source = graph.op("Slice", source, np.zeros_like(ends), ends, axes)
    axis = int(given["dim"])
    if not includes:
        if "float" not in data.dtype and math.isinf(neutral):
            raise UnsupportedOperator("include_self=False of integers isn't supported: reduce floats")
        start = np.full(index.shape, neutral).astype(numpy_dtype(data.dtype))
        data = graph.op("ScatterElements", data, index, start, axis=axis)
    return graph.op("ScatterElements", data, index, source, axis=axis, reduction=reduction).expr


def _index_put(node: Any, importer: Any) -> Any:
    """Write values at positions of some axes, as `y[:, at] = values` and index_copy do. TVM's front end
    supports only positions of all axes.

    A single position is compared with all positions, which is an ordinary loop nest. Several are scattered.
    """
    data, indices, values, *more = importer.retrieve_args(node)
    shape, axes = extents_of(data), [axis for axis, index in enumerate(indices) if index is not None]
    emit, adds = importer.block_builder.emit, bool(more and more[0])
    if any(_is_mask(indices[axis]) for axis in axes):
        return _put_masked(importer, data, indices, values, adds)
    at = _places(importer, indices, shape)
    together = np.broadcast_shapes(*(extents_of(index) for index in at.values()))
    # If the indexed axes aren't adjacent, PyTorch puts their result first.
    first = axes[0] if axes == [*range(axes[0], axes[-1] + 1)] else 0
    rest = [axis for axis in range(len(shape)) if axis not in at]
    target = [shape[axis] for axis in rest]
    target[first:first] = together
    spread = emit(relax.op.broadcast_to(cast(importer.block_builder, values, str(data.ty.dtype)), target))
    if len(axes) == 1 and math.prod(together) == 1:
        alone = [1] * len(shape)
        alone[first] = -1
        every = relax.const(np.arange(shape[first]).reshape(alone), "int64")
        is_there = emit(relax.op.equal(every, emit(relax.op.reshape(at[first], [1] * len(shape)))))
        new = emit(relax.op.reshape(spread, [1 if axis == first else n for axis, n in enumerate(shape)]))
        new = emit(relax.op.add(data, new)) if adds else new
        return emit(relax.op.where(is_there, new, data))
    parts = []
    for axis, extent in enumerate(shape):
        broad = [1] * len(target)
        if axis in at:
            own = extents_of(at[axis])
            end = first + len(together)
            broad[end - len(own) : end] = own
            index = emit(relax.op.reshape(at[axis], broad))
        else:
            place = rest.index(axis)
            broad[place if place < first else place + len(together)] = extent
            index = relax.const(np.arange(extent).reshape(broad), "int64")
        parts.append(emit(relax.op.broadcast_to(index, target)))
    stacked = emit(relax.op.stack(parts, axis=len(target)))
    return emit(relax.op.scatter_nd(data, stacked, spread, "add" if adds else "update"))


def write_in_place(node: Any, importer: Any, axis: int) -> relax.Expr:
    """Write the rows of new tokens into a buffer of a cache, from the first token's place on. An `index_put`
    would copy the buffer."""
    builder = importer.block_builder
    buffer, indices, rows, *_ = importer.retrieve_args(node)
    extents = extents_of(buffer)
    places = _places(importer, indices, extents)[axis]
    count = math.prod(extents_of(places))
    place = builder.emit(relax.op.reshape(places, [count]))
    if count > 1:
        place = builder.emit(relax.op.strided_slice(place, [0], [0], [1]))
    written = [count if k == axis else extent for k, extent in enumerate(extents)]
    rows = builder.emit(relax.op.broadcast_to(cast(builder, rows, str(buffer.ty.dtype)), written))
    return builder.emit(write_rows(builder, buffer, rows, place, axis))


def extents_of(tensor: Any) -> list[int]:
    return [int(extent) for extent in tensor.ty.shape.values]


def _is_mask(index: Any) -> bool:
    return str(index.ty.dtype) in ("bool", "uint8")


def _places(importer: Any, indices: Sequence[Any], shape: Sequence[int]) -> dict[int, Any]:
    """Return the indices by axis. Indices from the end become indices from the start."""
    builder, found = importer.block_builder, {}
    for axis, index in enumerate(indices):
        if index is not None:
            place = cast(builder, index, "int64")
            from_end = builder.emit(relax.op.add(place, relax.const(shape[axis], "int64")))
            is_below = builder.emit(relax.op.less(place, relax.const(0, "int64")))
            found[axis] = builder.emit(relax.op.where(is_below, from_end, place))
    return found


def _put_masked(importer: Any, data: Any, indices: Sequence[Any], values: Any, adds: bool) -> Any:
    """Write one number where a mask holds, as `x[x > 0] = 0` does."""
    mask, shape, emit = indices[0], extents_of(data), importer.block_builder.emit
    if mask is None or len(indices) > 1 or math.prod(extents_of(values)) != 1:
        raise UnsupportedOperator(
            "the data decides how many values a mask takes: write one number, or use torch.where"
        )
    extents = extents_of(mask)
    mask = cast(importer.block_builder, mask, "bool")
    mask = emit(relax.op.reshape(mask, [*extents, *(1 for _ in shape[len(extents) :])]))
    value = emit(relax.op.reshape(cast(importer.block_builder, values, str(data.ty.dtype)), [1] * len(shape)))
    return emit(relax.op.where(mask, emit(relax.op.add(data, value)) if adds else value, data))


def _index(node: Any, importer: Any) -> Any:
    """Read elements at positions of some axes, as `x[:, rows, columns]` does. The axes are merged into one,
    from which elements are taken."""
    data, indices = importer.retrieve_args(node)[:2]
    shape, emit = extents_of(data), importer.block_builder.emit
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if any(_is_mask(indices[axis]) for axis in axes):
        raise UnsupportedOperator("the data decides how many elements a mask selects: use torch.where")
    at = _places(importer, indices, shape)
    together = list(np.broadcast_shapes(*(extents_of(index) for index in at.values())))
    # If the indexed axes aren't adjacent, PyTorch puts their result first.
    first = axes[0] if axes == [*range(axes[0], axes[-1] + 1)] else 0
    rest = [axis for axis in range(len(shape)) if axis not in at]
    order = [*rest[:first], *axes, *rest[first:]]
    if order != [*range(len(shape))]:
        data = emit(relax.op.permute_dims(data, order))
    flat = relax.const(0, "int64")
    for axis in axes:
        flat = emit(relax.op.add(relax.op.multiply(flat, relax.const(shape[axis], "int64")), at[axis]))
    count = math.prod(shape[axis] for axis in axes)
    before, after = ([shape[axis] for axis in part] for part in (rest[:first], rest[first:]))
    merged = emit(relax.op.reshape(data, [*before, count, *after]))
    taken = emit(relax.op.take(merged, emit(relax.op.reshape(flat, [-1])), axis=first, mode="clip"))
    return emit(relax.op.reshape(taken, [*before, *together, *after]))


def _forms(names: Sequence[str], convert: Convert) -> dict[str, Convert]:
    return {f"{name}.{form}": convert for name in names for form in ("default", "vec")}


_NEAREST = [f"upsample_nearest{rank}d" for rank in (1, 2, 3)]
_NEAREST_EXACT = [f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)]
_LINEAR = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"]
_SHIFTS_LEFT, _SHIFTS_RIGHT = (
    [
        *(f"bitwise_{side}_shift.{form}" for form in ("Tensor", "Tensor_Scalar")),
        *(f"__{letter}shift__.{form}" for form in ("Tensor", "Scalar")),
    ]
    for side, letter in (("left", "l"), ("right", "r"))
)
CONVERTERS: Mapping[str, Convert] = {
    "elu.default": _elu,
    "index.Tensor": _index,
    "as_strided.default": _as_strided,
    "index_put.default": _index_put,
    **{
        f"{name}.{form}": _with_alpha(name)
        for name in ("add", "sub", "rsub")
        for form in ("Tensor", "Scalar")
    },
    **dict.fromkeys(("div.Tensor_mode", "div.Scalar_mode"), _floored),
    **dict.fromkeys(("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"), _floored),
    **dict.fromkeys(("copysign.Scalar", "copysign.Tensor"), _copysign),
    **dict.fromkeys(_SHIFTS_LEFT, _shift(relax.op.left_shift)),
    **dict.fromkeys(_SHIFTS_RIGHT, _shift(relax.op.right_shift)),
    "native_group_norm.default": _group_norm,
    "sign.default": _sign,
    "sgn.default": _sign,
    "fmax.default": _ignoring_nan(relax.op.maximum),
    "fmin.default": _ignoring_nan(relax.op.minimum),
    "amax.default": _extreme(relax.op.max),
    "amin.default": _extreme(relax.op.min),
    "max.dim": _extreme_along("max"),
    "min.dim": _extreme_along("min"),
    **dict.fromkeys(("clamp.default", "clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor"), _clamp),
    "exp2.default": _exp2,
    "full.default": _full,
    "full_like.default": _full,
    "scalar_tensor.default": _full,
    "prod.dim_int": _product,
    **_forms(_NEAREST, _upsample("nearest", "asymmetric")),
    **_forms(_NEAREST_EXACT, _upsample("nearest", "half_pixel")),
    **_forms(_LINEAR, _upsample("linear", "half_pixel")),
    **_forms(["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"], _refuse_antialias),
    **_forms(["upsample_bicubic2d"], _upsample("cubic", "half_pixel")),
    "grid_sampler_2d.default": _grid_sample,
    "grid_sampler_3d.default": _grid_sample,
    "max_pool2d_with_indices.default": _max_pool,
    "max_pool3d_with_indices.default": _max_pool,
    "adaptive_max_pool2d.default": _adaptive_max_pool,
    "adaptive_max_pool3d.default": _adaptive_max_pool,
    "avg_pool2d.default": _average_pool,
    "avg_pool3d.default": _average_pool,
    "scatter.src": _scatter_reduce,
    "scatter_add.default": _scatter_reduce,
    "scatter_reduce.two": _scatter_reduce,
}
