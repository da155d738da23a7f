"""Control flow without branches: loops are unrolled, and both branches of a condition that the data decides
are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.importing.onnx_graph import Converter, Graph, Subgraph
from compiler.importing.values import Node, UnsupportedOperator, Value


def _if(graph: Graph, node: Node) -> Sequence[Value]:
    """Import the branch that a constant condition chooses. Otherwise both are computed.

        y = If(c, then_branch={y1 = Neg(x)}, else_branch={y2 = Abs(x)})
    ->
        y = Where(c, Neg(x), Abs(x))
    """
    condition = node.input(0)
    then_branch: Subgraph = node.attributes["then_branch"]
    else_branch: Subgraph = node.attributes["else_branch"]
    if condition.constant is not None:
        chosen = then_branch if condition.constant.reshape(()) else else_branch
        return chosen.imported(graph, [])
    return choose(graph, condition, then_branch.imported(graph, []), else_branch.imported(graph, []))


def choose(graph: Graph, condition: Value, first: Sequence[Value], second: Sequence[Value]) -> list[Value]:
    """Return the first values if the condition, a tensor of one element, is true, else the second."""
    for left, right in zip(first, second, strict=True):
        if (left.shape, left.dtype) != (right.shape, right.dtype):
            raise UnsupportedOperator("the data decides between results of different shapes")
    scalar = graph.op("Reshape", condition, np.array([], np.int64))
    return [
        left if left is right else graph.op("Where", scalar, left, right)
        for left, right in zip(first, second, strict=True)
    ]


def _loop(graph: Graph, node: Node) -> Sequence[Value]:
    """Unroll a loop of a known number of iterations. A condition that the data decides is kept in a variable:
    once it is false, the values that the loop carries don't change any more."""
    trips, going = node.optional(0), node.optional(1)
    body: Subgraph = node.attributes["body"]
    carried = [_required(value) for value in node.inputs[2:]]
    if trips is None and (going is None or going.constant is None):
        raise UnsupportedOperator("the data decides how often the loop runs")
    most = None if trips is None else int(trips.known("the number of iterations").reshape(()))
    collected: list[list[Value]] = [[] for _ in range(len(body.proto.output) - 1 - len(carried))]
    iteration = 0
    while most is None or iteration < most:
        if going is not None and going.constant is not None and not going.constant.reshape(()):
            break
        if most is None and going is not None and going.constant is None:
            raise UnsupportedOperator("the data decides how often the loop runs")
        asked = going if going is not None else graph.value(np.array(True))
        after, *results = body.imported(graph, [graph.value(np.int64(iteration)), asked, *carried])
        fresh, rows = results[: len(carried)], results[len(carried) :]
        if going is not None and going.constant is None:
            if rows:
                raise UnsupportedOperator("the data decides how many rows the loop collects")
            fresh = choose(graph, going, fresh, carried)
            after = graph.op("And", going, after)
        carried, going = fresh, after
        for row, rows_before in zip(rows, collected, strict=True):
            rows_before.append(row)
        iteration += 1
    if collected and not iteration:
        raise UnsupportedOperator("a loop that never runs collects nothing")
    return [*carried, *(stack(graph, rows, axis=0) for rows in collected)]


def _scan(graph: Graph, node: Node) -> Sequence[Value]:
    """Unroll a scan over its inputs' rows; before opset 9, one for each element of a batch."""
    num_scanned = int(node.attributes["num_scan_inputs"])
    if node.opset >= 9:
        return _scan_rows(graph, node, [_required(value) for value in node.inputs], num_scanned)
    if node.optional(0) is not None:
        raise UnsupportedOperator("sequences of different lengths aren't supported")
    inputs = [_required(value) for value in node.inputs[1:]]
    node = replace(
        node,
        attributes={
            **node.attributes,
            "scan_input_directions": node.attributes.get("directions", [0] * num_scanned),
        },
    )
    results = [
        _scan_rows(graph, node, [row(graph, value, element) for value in inputs], num_scanned)
        for element in range(inputs[0].shape[0])
    ]
    return [stack(graph, parts, axis=0) for parts in zip(*results, strict=True)]


def _scan_rows(graph: Graph, node: Node, inputs: Sequence[Value], num_scanned: int) -> Sequence[Value]:
    body: Subgraph = node.attributes["body"]
    state, scanned = inputs[: len(inputs) - num_scanned], inputs[len(inputs) - num_scanned :]
    num_results = len(body.proto.output) - len(state)
    axes = list(node.attributes.get("scan_input_axes", [0] * num_scanned))
    directions = list(node.attributes.get("scan_input_directions", [0] * num_scanned))
    output_axes = list(node.attributes.get("scan_output_axes", [0] * num_results))
    output_directions = list(node.attributes.get("scan_output_directions", [0] * num_results))
    length = scanned[0].shape[axes[0]]
    collected: list[list[Value]] = [[] for _ in range(num_results)]
    for step in range(length):
        rows = [
            row(graph, value, length - 1 - step if backwards else step, axis)
            for value, axis, backwards in zip(scanned, axes, directions, strict=True)
        ]
        results = body.imported(graph, [*state, *rows])
        state = results[: len(state)]
        for result, before in zip(results[len(state) :], collected, strict=True):
            before.append(result)
    stacked = [
        stack(graph, rows[::-1] if backwards else rows, axis)
        for rows, axis, backwards in zip(collected, output_axes, output_directions, strict=True)
    ]
    return [*state, *stacked]


def row(graph: Graph, value: Value, index: int, axis: int = 0) -> Value:
    """Return the part at `index` of an axis, without that axis."""
    axis %= value.rank
    if value.shape[axis] == 1:
        return graph.op("Squeeze", value, np.array([axis]))
    begin, end, axes = (np.array([number]) for number in (index, index + 1, axis))
    return graph.op("Squeeze", graph.op("Slice", value, begin, end, axes), axes)


def rows(graph: Graph, value: Value) -> list[Value]:
    """Return the parts of all indices of the first axis, without that axis."""
    count = value.shape[0]
    parts = graph.ops("Split", count, value, np.ones(count, np.int64), axis=0) if count > 1 else [value]
    return [graph.op("Squeeze", part, np.array([0])) for part in parts]


def stack(graph: Graph, rows: Sequence[Value], axis: int) -> Value:
    axis %= rows[0].rank + 1
    parts = [graph.op("Unsqueeze", value, np.array([axis])) for value in rows]
    return parts[0] if len(parts) == 1 else graph.op("Concat", *parts, axis=axis)


def _required(value: Value | None) -> Value:
    if value is None:
        raise UnsupportedOperator("an input is missing")
    return value


def _has_element(graph: Graph, node: Node) -> Value:
    """Return whether an optional tensor is present."""
    return graph.constant(np.array(node.optional(0) is not None))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "If"): _if,
    ("", "OptionalHasElement"): _has_element,
    ("", "Loop"): _loop,
    ("", "Scan"): _scan,
}
