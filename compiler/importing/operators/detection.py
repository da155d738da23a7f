"""Convert selections. Their outputs have the maximum number of rows; the data decides how many are valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.padding import NO_ROW
from compiler.importing.values import Node, Padding, UnsupportedOperator, Value
from compiler.tvmscript import T

# The most elements in each part that Unique compares, because each element takes a sort.
MAX_UNIQUE_WIDTH = 64


def _non_max_suppression(graph: Graph, node: Node) -> Value:
    """Select boxes of each class, the best first, that overlap none selected before.

    A row is the number of a batch, a class and a box. There are batches * classes *
    min(max_output_boxes_per_class, boxes) rows. Valid rows come first, in ONNX's order; all others hold -1.
    """
    boxes, scores = node.input(0), node.input(1)
    limit, overlap, threshold = (node.optional(position) for position in (2, 3, 4))
    batches, classes, count = scores.shape
    most = 0 if limit is None else int(limit.known("max_output_boxes_per_class").reshape(()))
    picks = max(0, min(most, count))
    if picks == 0:
        return graph.constant(np.zeros((0, 3), np.int64))
    if node.attributes.get("center_point_box", 0):
        x, y, width, height = graph.ops("Split", 4, boxes, np.ones(4, np.int64), axis=2)
        half_width, half_height = (graph.op("Div", size, np.float32(2)) for size in (width, height))
        corners = [graph.op("Sub", y, half_height), graph.op("Sub", x, half_width)]
        corners += [graph.op("Add", y, half_height), graph.op("Add", x, half_width)]
        boxes = graph.op("Concat", *corners, axis=2)
    wanted = graph.value(np.ones(scores.shape, np.bool_))
    if threshold is not None:
        wanted = graph.op("Greater", scores, graph.op("Reshape", threshold, np.array([1])))
    overlap = graph.op("Reshape", np.float32(0) if overlap is None else overlap, np.array([1]))
    kernel = graph.builder.add_func(_greedy(batches, classes, count, picks), "non_max_suppression")
    arguments = relax.Tuple([value.expr for value in (boxes, scores, wanted, overlap)])
    kind = relax.TensorType((batches, classes, picks), "int32")
    selected = cast(graph, graph.emit(relax.call_tir(kernel, arguments, kind)), "int64")

    box = graph.op("Reshape", selected, np.array([-1, 1]))
    batch, class_ = (at.reshape(-1, 1) for at in np.indices((batches, classes, picks))[:2])
    triples = graph.op("Concat", batch, class_, box, axis=1)
    return _first(graph, graph.op("GreaterOrEqual", box, np.int64(0)), triples)


def _first(graph: Graph, is_valid: Value, rows: Value) -> Value:
    """Move valid rows before all others, and keep the order of both. `rows` is (rows, columns), `is_valid`
    (rows, 1)."""
    count, columns = rows.shape
    ones = graph.op("Where", is_valid, np.int64(1), np.int64(0))
    before = graph.op("CumSum", ones, np.int64(0), exclusive=1)
    total = graph.op("ReduceSum", ones, np.array([0, 1]), keepdims=0)
    behind = graph.op("Add", total, graph.op("Sub", np.arange(count).reshape(-1, 1), before))
    places = graph.op("Expand", graph.op("Where", is_valid, before, behind), np.array([count, columns]))
    marked = graph.op("Where", is_valid, rows, np.int64(NO_ROW))
    packed = graph.op("ScatterElements", np.zeros((count, columns), np.int64), places, marked, axis=0)
    return packed.with_padding(Padding(0, total))


def _non_zero(graph: Graph, node: Node) -> Value:
    """Return the positions of all elements, those of nonzero elements first: (axes, elements)."""
    data = node.input(0)
    if data.size == 0 or data.rank == 0:
        raise UnsupportedOperator("it looks for the elements of a scalar, or of nothing")
    numbers = graph.op("Cast", data, to=onnx.TensorProto.FLOAT) if data.dtype == "bool" else data
    flat = graph.op("Reshape", numbers, np.array([-1, 1]))
    is_valid = graph.op("Not", graph.op("Equal", flat, np.array(0, flat.dtype)))
    places = np.indices(data.shape).reshape(data.rank, -1).T
    return graph.op("Transpose", _first(graph, is_valid, graph.value(places)), perm=[1, 0])


def _unique(graph: Graph, node: Node) -> list[Value]:
    """Return the distinct elements, or distinct parts along an axis, with as many rows as there are parts.

    Stable sorts by each element, the last element first, sort the parts by all elements. Equal parts are then
    neighbours, in the order of the data.
    """
    data, axis = node.input(0), node.attributes.get("axis")
    if axis is None:
        data, axis = graph.op("Reshape", data, np.array([-1])), 0
    axis = int(axis) % data.rank
    count = data.shape[axis]
    width = data.size // max(count, 1)
    if width > MAX_UNIQUE_WIDTH:
        raise UnsupportedOperator(
            f"the parts along axis {axis} have {width} elements each: at most {MAX_UNIQUE_WIDTH} are "
            "supported"
        )
    numbers = cast(graph, data, "uint8") if data.dtype == "bool" else data
    order = [axis, *(k for k in range(data.rank) if k != axis)]
    parts = graph.op("Reshape", graph.op("Transpose", numbers, perm=order), np.array([count, width]))
    places = graph.value(np.arange(count))
    for column in reversed(range(width)):
        keys = graph.op("Gather", graph.op("Gather", parts, np.int64(column), axis=1), places, axis=0)
        _, moved = graph.ops("TopK", 2, keys, np.array([count]), axis=0, largest=0)
        places = graph.op("Gather", places, moved, axis=0)
    ordered = graph.op("Gather", parts, places, axis=0)
    before = graph.op("Gather", ordered, np.maximum(np.arange(count) - 1, 0), axis=0)
    equal = cast(graph, graph.op("Equal", ordered, before), "int32")
    repeats = graph.op("Equal", graph.op("ReduceMin", equal, np.array([1]), keepdims=0), np.int32(1))
    is_first = graph.op("Or", graph.op("Not", repeats), np.arange(count) == 0)
    groups = _numbers(graph, is_first)
    nothing = np.zeros(count, np.int64)
    inverse = graph.op("ScatterElements", nothing, places, groups, axis=0)
    if not node.attributes.get("sorted", 1):
        # Number the groups in the order of their first parts.
        marks = graph.op("ScatterElements", nothing, places, cast(graph, is_first, "int64"), axis=0)
        is_first = graph.op("Equal", marks, np.int64(1))
        # Parts that aren't the first of a group don't change its number.
        rank = graph.op("Where", is_first, _numbers(graph, is_first), np.int64(0))
        numbered = graph.op("ScatterElements", nothing, inverse, rank, axis=0, reduction="add")
        inverse = graph.op("Gather", numbered, inverse, axis=0)
        places = graph.value(np.arange(count))
    column_of = np.array([-1, 1])
    first = _first(graph, graph.op("Reshape", is_first, column_of), graph.op("Reshape", places, column_of))
    padding = first.padding
    assert padding is not None
    indices = graph.op("Reshape", first.with_padding(None), np.array([-1]))
    chosen = graph.op("Gather", data, graph.op("Max", indices, np.int64(0)), axis=axis)
    counts = graph.op("ScatterElements", nothing, inverse, np.ones(count, np.int64), axis=0, reduction="add")
    return [
        chosen.with_padding(Padding(axis, padding.count)),
        indices.with_padding(padding),
        inverse,
        counts.with_padding(padding),
    ]


def _numbers(graph: Graph, is_first: Value) -> Value:
    """Return for each element the index of its group: the number of first elements up to it, minus one."""
    counted = graph.op("CumSum", cast(graph, is_first, "int64"), np.int64(0))
    return graph.op("Sub", counted, np.int64(1))


def _greedy(batches: int, classes: int, count: int, picks: int) -> Any:
    """Return a TIR function that writes the selected boxes of each class in the order of their scores,
    followed by -1.

    The boxes are in a heap, from which the best is taken until enough are selected. So most boxes are never
    compared.
    """

    @T.prim_func(s_tir=True, private=True)
    def non_max_suppression(a: T.handle, b: T.handle, c: T.handle, d: T.handle, e: T.handle) -> None:
        boxes = T.match_buffer(a, (batches, count, 4), "float32")
        scores = T.match_buffer(b, (batches, classes, count), "float32")
        wanted = T.match_buffer(c, (batches, classes, count), "bool")
        overlap = T.match_buffer(d, (1,), "float32")
        selected = T.match_buffer(e, (batches, classes, picks), "int32")
        heap = T.sblock_alloc_buffer((batches, classes, count), "int32", scope="local")
        size = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        found = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        # The part below is a heap already.
        root = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        hole = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        child = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        other = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        best = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        before = T.sblock_alloc_buffer((batches, classes), "int32", scope="local")
        for i, j in T.grid(batches, classes):
            with T.sblock("select"):
                v, w = T.axis.remap("SS", [i, j])
                T.reads(boxes[v, 0:count, 0:4], scores[v, w, 0:count], wanted[v, w, 0:count], overlap[0])
                T.writes(
                    *(selected[v, w, 0:picks], heap[v, w, 0:count], size[v, w], found[v, w], root[v, w]),
                    *(hole[v, w], child[v, w], other[v, w], best[v, w], before[v, w]),
                )
                size[v, w] = 0
                for k in range(count):
                    heap[v, w, size[v, w]] = k
                    size[v, w] = size[v, w] + T.Cast("int32", wanted[v, w, k])
                for k in range(picks):
                    selected[v, w, k] = -1
                found[v, w] = 0
                root[v, w] = size[v, w] // 2
                while root[v, w] > 0 or (size[v, w] > 0 and found[v, w] < picks):
                    if root[v, w] > 0:
                        root[v, w] = root[v, w] - 1
                    else:
                        best[v, w] = heap[v, w, 0]
                        size[v, w] = size[v, w] - 1
                        heap[v, w, 0] = heap[v, w, size[v, w]]
                        before[v, w] = 0
                        while before[v, w] < found[v, w]:
                            before[v, w] = T.if_then_else(
                                _overlaps(boxes, v, best[v, w], selected[v, w, before[v, w]], overlap[0]),
                                picks + 1,
                                before[v, w] + 1,
                            )
                        if before[v, w] == found[v, w]:
                            selected[v, w, found[v, w]] = best[v, w]
                            found[v, w] = found[v, w] + 1
                    hole[v, w] = root[v, w]
                    child[v, w] = 2 * root[v, w] + 1
                    while child[v, w] < size[v, w]:
                        # Both sides of an `and` are computed, so the compared indices must be in the heap.
                        other[v, w] = T.min(child[v, w] + 1, size[v, w] - 1)
                        if _precedes(scores, v, w, heap[v, w, other[v, w]], heap[v, w, child[v, w]]):
                            child[v, w] = other[v, w]
                        if _precedes(scores, v, w, heap[v, w, child[v, w]], heap[v, w, hole[v, w]]):
                            best[v, w] = heap[v, w, hole[v, w]]
                            heap[v, w, hole[v, w]] = heap[v, w, child[v, w]]
                            heap[v, w, child[v, w]] = best[v, w]
                            hole[v, w] = child[v, w]
                            child[v, w] = 2 * hole[v, w] + 1
                        else:
                            child[v, w] = size[v, w]

    return non_max_suppression


def _precedes(scores: Any, batch: Any, class_: Any, one: Any, other: Any) -> Any:
    """Return whether a box has the higher score, or an equal score and the smaller number."""
    own, others = scores[batch, class_, one], scores[batch, class_, other]
    return tirx.any(own > others, tirx.all(own == others, one < other))


def _overlaps(boxes: Any, batch: Any, one: Any, other: Any, most: Any) -> Any:
    """Return whether the intersection of two boxes is more than `most` of their union. As in ONNX Runtime,
    boxes without an area don't overlap."""

    def sides(box: Any, axis: int) -> tuple[Any, Any]:
        ends = boxes[batch, box, axis], boxes[batch, box, axis + 2]
        return tirx.min(*ends), tirx.max(*ends)

    def area(box: Any) -> Any:
        (top, bottom), (left, right) = sides(box, 0), sides(box, 1)
        return (bottom - top) * (right - left)

    lengths = []
    for axis in range(2):
        (begin, end), (other_begin, other_end) = sides(one, axis), sides(other, axis)
        lengths.append(tirx.min(end, other_end) - tirx.max(begin, other_begin))
    common = lengths[0] * lengths[1]
    union = area(one) + area(other) - common
    is_some = tirx.all(*(length > 0 for length in lengths), area(one) > 0, area(other) > 0, union > 0)
    return tirx.all(is_some, common / union > most)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "NonMaxSuppression"): _non_max_suppression,
    ("", "NonZero"): _non_zero,
    ("", "Unique"): _unique,
}
