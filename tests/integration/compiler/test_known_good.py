"""Known fast programs compile and compute right results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tvm
from tvm import te, tirx

from compiler.lowering.trace import lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.workload import to_json
from core.measurement import Outcome
from search.dag import Dag
from tests.marks import slow_lane_except
from tests.packing import with_constants
from tests.unit.search.known_good import KNOWN_GOOD
from tests.workloads import module

DEVICE = detect_device()
BUILDER = LocalBuilder(DEVICE.target)

Tensors = list[te.Tensor]


def _inputs(graph: Dag) -> Tensors:
    inputs = [buffer for buffer in graph.buffers if buffer.role == "input"]
    return [te.placeholder(buffer.shape, buffer.dtype, name=buffer.name) for buffer in inputs]


def _sum_axes(graph: Dag, name: str) -> list[te.IterVar]:
    node = graph.node[name]
    return [te.reduce_axis((0, node.axes[i].extent), name=node.axes[i].name) for i in node.reduction]


def _compute(graph: Dag, name: str, value: Callable[..., object]) -> te.Tensor:
    return te.compute(graph.buffer[name].shape, value, name=name)


def _between(low: int, value: Any, high: int) -> Any:
    return tirx.all(value >= low, value < high)


def _matmul(graph: Dag) -> Tensors:
    a, b = _inputs(graph)
    (k,) = _sum_axes(graph, "matmul")
    return [a, b, _compute(graph, "matmul", lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]))]


def _gemv(graph: Dag) -> Tensors:
    weight, vector = _inputs(graph)
    (k,) = _sum_axes(graph, "gemv")
    return [weight, vector, _compute(graph, "gemv", lambda i: te.sum(weight[i, k] * vector[k], axis=[k]))]


def _pad(graph: Dag, data: te.Tensor) -> te.Tensor:
    size = data.shape[1]

    def inside(n: Any, y: Any, x: Any, c: Any) -> Any:
        is_there = tirx.all(_between(1, y, size + 1), _between(1, x, size + 1))
        return tirx.if_then_else(is_there, data[n, y - 1, x - 1, c], 0.0)

    return _compute(graph, "pad", inside)


def _conv(graph: Dag) -> Tensors:
    data, weight, bias = _inputs(graph)
    pad = _pad(graph, data)
    ry, rx, rc = axes = _sum_axes(graph, "conv")
    conv = _compute(
        graph,
        "conv",
        lambda n, y, x, f: te.sum(pad[n, y + ry, x + rx, rc] * weight[ry, rx, rc, f], axis=axes),
    )
    add = _compute(graph, "add", lambda n, y, x, f: conv[n, y, x, f] + bias[n, 0, 0, f])
    relu = _compute(graph, "relu", lambda n, y, x, f: te.max(add[n, y, x, f], 0.0))
    return [data, weight, bias, relu]


def _softmax(graph: Dag) -> Tensors:
    (data,) = _inputs(graph)
    k, m = _sum_axes(graph, "max") + _sum_axes(graph, "sum")
    most = _compute(graph, "max", lambda i: te.max(data[i, k], axis=[k]))
    exp = _compute(graph, "exp", lambda i, j: te.exp(data[i, j] - most[i]))
    total = _compute(graph, "sum", lambda i: te.sum(exp[i, m], axis=[m]))
    return [data, _compute(graph, "divide", lambda i, j: exp[i, j] / total[i])]


def _layer_norm(graph: Dag) -> Tensors:
    data, scale, shift = _inputs(graph)
    columns = data.shape[1]
    k, m = _sum_axes(graph, "sum") + _sum_axes(graph, "variance")
    total = _compute(graph, "sum", lambda i: te.sum(data[i, k], axis=[k]))
    mean = _compute(graph, "mean", lambda i: total[i] / columns)
    squares = _compute(
        graph, "variance", lambda i: te.sum((data[i, m] - mean[i]) * (data[i, m] - mean[i]), axis=[m])
    )

    def norm(i: object, j: object) -> object:
        return (data[i, j] - mean[i]) * te.rsqrt(squares[i] / columns + 1e-5) * scale[j] + shift[j]

    return [data, scale, shift, _compute(graph, "norm", norm)]


def _depthwise(graph: Dag) -> Tensors:
    data, weight = _inputs(graph)
    pad = _pad(graph, data)
    di, dj = axes = _sum_axes(graph, "depthwise")
    conv = _compute(
        graph,
        "depthwise",
        lambda b, i, j, c: te.sum(pad[b, i + di, j + dj, c] * weight[di, dj, c, 0], axis=axes),
    )
    clip = _compute(graph, "clip", lambda b, i, j, c: te.max(te.min(conv[b, i, j, c], 6.0), 0.0))
    return [data, weight, clip]


def _transposed(graph: Dag) -> Tensors:
    data, weight = _inputs(graph)
    wide = graph.buffer["dilate"].shape[1]

    def dilated(n: Any, y: Any, x: Any, c: Any) -> Any:
        return tirx.if_then_else(tirx.all(y % 2 == 0, x % 2 == 0), data[n, y // 2, x // 2, c], 0.0)

    dilate = _compute(graph, "dilate", dilated)

    def padded(n: Any, y: Any, x: Any, c: Any) -> Any:
        is_there = tirx.all(_between(2, y, wide + 2), _between(2, x, wide + 2))
        return tirx.if_then_else(is_there, dilate[n, y - 2, x - 2, c], 0.0)

    pad = _compute(graph, "pad", padded)
    ry, rx, c = axes = _sum_axes(graph, "conv")
    conv = _compute(
        graph,
        "conv",
        lambda n, y, x, f: te.sum(pad[n, y + ry, x + rx, c] * weight[3 - ry, 3 - rx, c, f], axis=axes),
    )
    return [data, weight, conv]


def _transpose(graph: Dag) -> Tensors:
    (data,) = _inputs(graph)
    return [data, _compute(graph, "transpose", lambda i, j: data[j, i])]


def _heads(graph: Dag) -> Tensors:
    (data,) = _inputs(graph)
    size = graph.buffer["heads"].shape[2]
    reshape = _compute(graph, "reshape", lambda l, h, d: data[l, h * size + d])  # noqa: E741
    return [data, _compute(graph, "heads", lambda h, l, d: reshape[l, h, d])]  # noqa: E741


def _doubled(graph: Dag) -> Tensors:
    (data,) = _inputs(graph)
    return [data, _compute(graph, "doubled", lambda i, y, x: data[i, y, x] + data[i, y, x])]


def _row_lengths(graph: Dag) -> Tensors:
    (data,) = _inputs(graph)
    (k,) = _sum_axes(graph, "sum")
    total = _compute(graph, "sum", lambda i: te.sum(data[i, k] * data[i, k], axis=[k]))
    return [data, _compute(graph, "length", lambda i: te.sqrt(total[i]))]


# By the last node of the dag.
WRITTEN_IN_TE: dict[str, Callable[[Dag], Tensors]] = {
    "matmul": _matmul,
    "gemv": _gemv,
    "relu": _conv,
    "divide": _softmax,
    "norm": _layer_norm,
    "clip": _depthwise,
    "conv": _transposed,
    "transpose": _transpose,
    "heads": _heads,
    "doubled": _doubled,
    "length": _row_lengths,
}


def _constants(graph: Dag) -> Sequence[int]:
    inputs = [buffer for buffer in graph.buffers if buffer.role == "input"]
    return [number for number, buffer in enumerate(inputs) if buffer.constant]


def _workload(graph: Dag) -> tvm.IRModule:
    made = module(WRITTEN_IN_TE[graph.name](graph))
    constants = _constants(graph)
    return with_constants(made, constants) if constants else made


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(DEVICE.target)


@pytest.mark.parametrize("name", slow_lane_except(KNOWN_GOOD, *sorted(KNOWN_GOOD)[:3], seconds=0.5))
def test_a_good_program_computes_the_right_result(name: str, runner: LocalRunner) -> None:
    known = KNOWN_GOOD[name]
    workload = _workload(known.graph)
    assert str(read_dag(workload)).splitlines() == str(known.graph).splitlines()
    text = to_json(workload)
    built = BUILDER.build(text, lower(workload, known.program, DEVICE))
    assert isinstance(built, BuiltKernel), built
    measured = runner.run(built, text, _constants(known.graph))
    assert measured.outcome is Outcome.OK, measured.error
