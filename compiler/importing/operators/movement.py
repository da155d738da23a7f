"""Convert operators that move elements: slices, gathers, scatters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tvm import relax, topi

from compiler.importing.folding import python_slice
from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, UnsupportedOperator, Value


def _slice(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    if node.opset < 10:
        starts, ends = (list(node.attributes[name]) for name in ("starts", "ends"))
        axes = list(node.attributes.get("axes", range(len(starts))))
        steps = [1] * len(starts)
    else:
        starts, ends = (node.input(k).known("where it begins and ends").tolist() for k in (1, 2))
        axes, steps = (
            list(range(len(starts)))
            if value is None and k == 3
            else [1] * len(starts)
            if value is None
            else value.known("its axes and steps").tolist()
            for k, value in ((3, node.optional(3)), (4, node.optional(4)))
        )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= data.rank
        extent = data.shape[axis]
        chosen = range(extent)[python_slice(start, end, step, extent)]
        if len(chosen) == extent and step == 1:
            continue
        if step > 0 and len(chosen):
            bounds = [chosen[0]], [chosen[-1] + 1], [step]
            data = graph.emit(relax.op.strided_slice(data.expr, [axis], *bounds))
        else:
            data = take(graph, data, np.array(chosen, np.int64), axis)
    return data


def _split(graph: Graph, node: Node) -> list[Value] | None:
    """Slice each part separately if some are empty, because TVM generates no code for empty parts."""
    data, sizes = node.input(0), node.optional(1)
    if sizes is None or sizes.known("the sizes of the parts").all():
        return None
    ends = np.cumsum(sizes.known("the sizes of the parts"))
    axis = np.array([node.attributes.get("axis", 0)])
    starts = [0, *ends[:-1].tolist()]
    return [
        graph.op("Slice", data, np.array([start]), np.array([end]), axis)
        for start, end in zip(starts, ends.tolist(), strict=True)
    ]


def take(graph: Graph, data: Value, indices: np.ndarray, axis: int) -> Value:
    """Return the parts of the data at these indices of an axis."""
    return graph.emit(relax.op.take(data.expr, relax.const(indices), axis=axis % data.rank))


def positive(graph: Graph, indices: Value, extent: Value | ArrayLike) -> Value:
    """Replace negative indices, which count from the end. `extent` broadcasts to the indices."""
    if indices.dtype.startswith("uint"):
        return indices
    counted = graph.op("Add", indices, cast(graph, graph.value(extent), indices.dtype))
    return graph.op("Where", graph.op("Less", indices, np.array(0, indices.dtype)), counted, indices)


def _check_inside(known: np.ndarray | None, extent: int, axis: int) -> None:
    """Raise UnsupportedOperator for constant indices that are out of range."""
    if known is not None and known.size and not (-extent <= known.min() and known.max() < extent):
        raise UnsupportedOperator(
            f"its indices are from {known.min()} to {known.max()}, and axis {axis} has {extent} parts"
        )


def _gather(graph: Graph, node: Node) -> Value:
    data, indices = node.input(0), node.input(1)
    axis = int(node.attributes.get("axis", 0)) % data.rank
    _check_inside(indices.constant, data.shape[axis], axis)
    places = positive(graph, indices, np.int64(data.shape[axis]))
    return graph.emit(relax.op.take(data.expr, places.expr, axis=axis, mode="clip"))


def _gather_elements(graph: Graph, node: Node) -> Value:
    data, indices = node.input(0), node.input(1)
    axis = int(node.attributes.get("axis", 0)) % data.rank
    _check_inside(indices.constant, data.shape[axis], axis)
    return graph.emit(relax.op.gather_elements(data.expr, indices.expr, axis))


def _gather_nd(graph: Graph, node: Node) -> Value:
    data, indices = node.input(0), node.input(1)
    batch_dims = int(node.attributes.get("batch_dims", 0))
    for place in range(indices.shape[-1]):
        known, axis = indices.constant, batch_dims + place
        _check_inside(None if known is None else known[..., place], data.shape[axis], axis)
    return graph.emit(relax.op.gather_nd(data.expr, indices.expr, batch_dims))


def _expand(graph: Graph, node: Node) -> Value:
    """Repeat the data to the shape that it and the given one broadcast to: either may be the longer one."""
    data = node.input(0)
    shape = tuple(node.input(1).known("the shape").tolist())
    wanted = np.broadcast_shapes(data.shape, shape)
    return data if wanted == data.shape else graph.emit(relax.op.broadcast_to(data.expr, wanted))


def _compress(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    chosen = np.flatnonzero(node.input(1).known("the condition"))
    if "axis" not in node.attributes:
        return take(graph, graph.op("Reshape", data, np.array([-1])), chosen, 0)
    return take(graph, data, chosen, int(node.attributes["axis"]))


def _reverse_sequence(graph: Graph, node: Node) -> Value:
    """Reverse the beginning of each sequence: y[t] = x[length - 1 - t] where t < length, else x[t]."""
    data, lengths = node.input(0), node.input(1)
    batch_axis = int(node.attributes.get("batch_axis", 1))
    time_axis = int(node.attributes.get("time_axis", 0))
    steps = np.arange(data.shape[time_axis]).reshape([-1 if k == time_axis else 1 for k in range(data.rank)])
    lengths = graph.op("Reshape", lengths, np.array([-1 if k == batch_axis else 1 for k in range(data.rank)]))
    mirrored = graph.op("Sub", graph.op("Sub", lengths, np.int64(1)), steps)
    places = graph.op("Where", graph.op("Less", steps, lengths), mirrored, steps)
    every = graph.op("Expand", places, np.array(data.shape))
    return graph.op("GatherElements", data, every, axis=time_axis)


def _pad(graph: Graph, node: Node) -> Value | None:
    """Import padding that TVM doesn't support: negative padding, and a fill value from the data. Modes that
    repeat elements gather them at constant indices."""
    data = node.input(0)
    mode: Any = str(node.attributes.get("mode", "constant"))
    if node.opset < 11:
        return None
    pads = node.input(1).known("the padding")
    axes_value = node.optional(3)
    axes = np.arange(data.rank) if axes_value is None else axes_value.known("the axes") % data.rank
    before, after = pads[: len(axes)], pads[len(axes) :]
    if mode != "constant":
        for axis, low, high in zip(axes.tolist(), before.tolist(), after.tolist(), strict=True):
            # Only the elements that remain after cropping are repeated.
            kept = np.arange(max(-low, 0), data.shape[axis] - max(-high, 0))
            data = take(graph, data, np.pad(kept, (max(low, 0), max(high, 0)), mode=mode), axis)
        return data
    for axis, low, high in zip(axes.tolist(), before.tolist(), after.tolist(), strict=True):
        begin, end = max(-low, 0), data.shape[axis] - max(-high, 0)
        data = graph.op("Slice", data, np.array([begin]), np.array([end]), np.array([axis]))
    filled = node.optional(2)
    widths = np.zeros((data.rank, 2), np.int64)
    widths[axes] = np.maximum(np.stack([before, after], axis=1), 0)
    constant = np.zeros(()) if filled is None else filled.constant
    if filled is None or constant is not None:
        number = 0.0 if constant is None else constant.reshape(()).item()
        if not widths.any():
            return data
        padded = graph.builder.emit_te(topi.nn.pad, data.expr, *widths.T.tolist(), number)
        return graph.emit(padded)
    inside = np.pad(np.ones(data.shape, np.bool_), widths)
    padded_zero = graph.op("Pad", data, widths.T.ravel())
    return graph.op("Where", inside, padded_zero, graph.op("Reshape", filled, np.array([], np.int64)))


def _trilu(graph: Graph, node: Node) -> Value | None:
    """Clip the diagonal's offset, because TVM computes it in 32 bits."""
    data, number = node.input(0), node.optional(1)
    diagonal = 0 if number is None else int(number.known("the diagonal").reshape(()))
    rows, columns = data.shape[-2:]
    bounded = min(max(diagonal, -rows), columns)
    if bounded == diagonal:
        return None
    return graph.op("Trilu", data, np.int64(bounded), upper=node.attributes.get("upper", 1))


def _tensor_scatter(graph: Graph, node: Node) -> Value:
    """Write an update into a cache, for each element of the batch from its own place on."""
    past, update, starts = node.input(0), node.input(1), node.optional(2)
    axis = int(node.attributes.get("axis", -2)) % past.rank
    length, count = past.shape[axis], update.shape[axis]
    steps = np.arange(length).reshape([-1 if k == axis else 1 for k in range(past.rank)])
    begin = graph.value(np.zeros(past.shape[0], np.int64)) if starts is None else cast(graph, starts, "int64")
    begin = graph.op("Reshape", begin, np.array([-1, *[1] * (past.rank - 1)]))
    offsets = graph.op("Sub", steps, begin)
    if node.attributes.get("mode", "linear") == "circular":
        offsets = graph.op("Mod", offsets, np.int64(length))
    is_new = graph.op(
        "And",
        graph.op("GreaterOrEqual", offsets, np.int64(0)),
        graph.op("Less", offsets, np.int64(count)),
    )
    places = graph.op("Clip", offsets, np.int64(0), np.int64(count - 1))
    shape = [length if k == axis else extent for k, extent in enumerate(update.shape)]
    moved = graph.op("GatherElements", update, graph.op("Expand", places, np.array(shape)), axis=axis)
    return graph.op("Where", is_new, moved, past)


def _space_to_depth(graph: Graph, node: Node) -> Value:
    data = node.input(0)
    size = int(node.attributes["blocksize"])
    batch, channels, height, width = data.shape
    shape = [batch, channels, height // size, size, width // size, size]
    columns_first = str(node.attributes.get("mode", "DCR")) == "CRD"
    order = [0, 1, 3, 5, 2, 4] if columns_first else [0, 3, 5, 1, 2, 4]
    blocks = graph.op("Transpose", graph.op("Reshape", data, np.array(shape)), perm=order)
    result = [batch, channels * size * size, height // size, width // size]
    return graph.op("Reshape", blocks, np.array(result))


def _one_hot(graph: Graph, node: Node) -> Value:
    """Compare indices with all positions; an index out of range equals none."""
    indices, depth, values = (node.input(position) for position in range(3))
    count = int(depth.known("the depth").reshape(()))
    axis = int(node.attributes.get("axis", -1)) % (indices.rank + 1)
    places = positive(graph, cast(graph, indices, "int64"), np.int64(count))
    places = graph.op("Unsqueeze", places, np.array([axis]))
    every = np.arange(count).reshape([-1 if k == axis else 1 for k in range(indices.rank + 1)])
    off, on = (take(graph, values, np.array([k]), 0) for k in range(2))
    return graph.op("Where", graph.op("Equal", places, every), on, off)


def _top_k(graph: Graph, node: Node) -> list[Value] | None:
    """Sort types that TVM can't sort as wider types, and uint64 as int64 with the highest bit flipped."""
    data, count = node.input(0), node.input(1).constant
    attributes: Any = dict(node.attributes)
    extent = data.shape[int(attributes.get("axis", -1))]
    if count is not None and not 0 <= count.item() <= extent:
        raise UnsupportedOperator(f"it wants {count.item()} elements of {extent}")
    wider = _SORTED_AS.get(data.dtype)
    if wider is not None:
        wide = cast(graph, data, wider)
        values, places = graph.ops("TopK", 2, wide, *node.inputs[1:], opset=node.opset, **attributes)
        return [cast(graph, values, data.dtype), places]
    if data.dtype != "uint64":
        return None
    highest = np.int64(-1 << 63)
    signed = graph.op("BitwiseXor", reinterpreted(graph, data, "int64"), highest)
    values, places = graph.ops("TopK", 2, signed, node.input(1), **attributes)
    return [reinterpreted(graph, graph.op("BitwiseXor", values, highest), "uint64"), places]


def _array_feature_extractor(graph: Graph, node: Node) -> Value:
    data, places = node.input(0), node.input(1)
    data = graph.op("Reshape", data, np.array([1, -1])) if data.rank == 1 else data
    return graph.op("Gather", data, graph.op("Reshape", places, np.array([-1])), axis=-1)


_SORTED_AS = {"bfloat16": "float32", "int16": "int32", "uint16": "int32", "uint32": "int64"}


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Trilu"): _trilu,
    ("", "Compress"): _compress,
    ("", "Expand"): _expand,
    ("", "Gather"): _gather,
    ("", "GatherElements"): _gather_elements,
    ("", "GatherND"): _gather_nd,
    ("", "OneHot"): _one_hot,
    ("", "Pad"): _pad,
    ("", "ReverseSequence"): _reverse_sequence,
    ("", "Slice"): _slice,
    ("", "SpaceToDepth"): _space_to_depth,
    ("", "Split"): _split,
    ("", "TensorScatter"): _tensor_scatter,
    ("", "TopK"): _top_k,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _array_feature_extractor,
}
