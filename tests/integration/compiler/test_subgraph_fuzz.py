"""Random graphs of operators are read faithfully or refused with a reason."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, topi
from tvm.s_tir import Schedule

from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from search.dag import BufferRole, Dag
from tests.workloads import WORKLOADS, module

Step = Callable[[te.Tensor], te.Tensor]


def _extents(data: te.Tensor) -> list[int]:
    return [int(extent) for extent in data.shape]


def _last(data: te.Tensor) -> int:
    return len(data.shape) - 1


def _flat(data: te.Tensor) -> te.Tensor:
    return topi.reshape(data, (math.prod(_extents(data)),))


def _folded(data: te.Tensor) -> te.Tensor:
    count = math.prod(_extents(data))
    columns = next(divisor for divisor in (6, 4, 3, 2, 1) if count % divisor == 0)
    return topi.reshape(data, (count // columns, columns))


def _gram(data: te.Tensor) -> te.Tensor:
    rows = _folded(data)
    return topi.matmul(rows, rows, False, True)


def _looked_up(data: te.Tensor) -> te.Tensor:
    count = _extents(data)[0]
    positions = te.compute((3,), lambda i: te.indexmod(i * 5, count), name="positions")
    return topi.take(data, positions, axis=0, mode="clip")


STEPS: dict[str, Step] = {
    "relu": topi.nn.relu,
    "exp": topi.exp,
    "double": lambda data: topi.add(data, data),
    "half": lambda data: topi.cast(topi.cast(data, "float16"), "float32"),
    "rounded": lambda data: topi.cast(topi.cast(data, "int8"), "float32"),
    "transpose": topi.transpose,
    "flip": topi.flip,
    "flat": _flat,
    "folded": _folded,
    "pad": lambda data: topi.nn.pad(data, [1] * len(data.shape)),
    "dilate": lambda data: topi.nn.dilate(data, [2] * len(data.shape)),
    "every second": lambda data: topi.strided_slice(data, [0], [1000], [2], axes=[0]),
    "sum": lambda data: topi.sum(data, axis=_last(data)),
    "max": lambda data: topi.max(data, axis=0, keepdims=True),
    "total": topi.sum,
    "softmax": topi.nn.softmax,
    "argmax": lambda data: topi.cast(topi.argmax(data, axis=_last(data)), "float32"),
    "concatenate": lambda data: topi.concatenate([data, data], axis=0),
    "repeat": lambda data: topi.repeat(data, 3, 0),
    "tile": lambda data: topi.tile(data, [2] * len(data.shape)),
    "outer": lambda data: topi.expand_dims(data, 0, 1),
    "gram": _gram,
    "looked up": _looked_up,
    "cumulative": lambda data: topi.cumsum(data, axis=0),
}
# Operators that need an axis.
AXES = set(STEPS) - {"relu", "exp", "double", "half", "rounded", "outer", "flat", "folded", "gram"}


def _composed(shape: Sequence[int], names: Sequence[str]) -> list[te.Tensor]:
    first = last = te.placeholder(tuple(shape), name="data")
    for name in names:
        size = math.prod(_extents(last))
        if size < 2000 and (last.shape or name not in AXES):
            last = STEPS[name](last)
    return [first, topi.identity(last)]


@settings(max_examples=80)
@given(st.lists(st.integers(1, 6), max_size=3), st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
def test_every_graph_is_read_or_refused(shape: list[int], names: list[str]) -> None:
    workload = module(_composed(shape, names))
    with contextlib.suppress(UnsupportedSubgraph):
        graph = read_dag(workload)
        _check_axes(graph, Schedule(workload))
        assert str(graph)
        assert [b.role for b in graph.buffers].count(BufferRole.OUTPUT) == 1


def _check_axes(graph: Dag, schedule: Schedule) -> None:
    for node in graph.nodes:
        loops = schedule.get_loops(schedule.get_sblock(node.name))
        assert [int(schedule.get(loop).extent) for loop in loops] == [a.extent for a in node.axes]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(set(STEPS) - {"cumulative"})), max_size=6))
def test_all_operators_but_library_routines_are_supported(names: list[str]) -> None:
    assert read_dag(module(_composed((4, 6), names))).nodes


def _transform(schedule: Schedule, block: str, primitive: str, rng: Random) -> None:
    loops = schedule.get_loops(block)
    loop = rng.choice(loops)
    match primitive:
        case "split":
            schedule.split(loop, [None, rng.randint(1, 5)])
        case "fuse":
            schedule.fuse(*loops[: rng.randint(1, len(loops))])
        case "reorder":
            schedule.reorder(*rng.sample(loops, len(loops)))
        case "decompose":
            schedule.decompose_reduction(block, loop)
        case "factor":
            schedule.rfactor(loop, 0)
        case "cache":
            schedule.cache_write(block, 0, "global")
        case "parallel":
            schedule.parallel(loop)
        case "move":
            schedule.compute_at(schedule.get_producers(block)[0], loop)


PRIMITIVES = ("split", "fuse", "reorder", "decompose", "factor", "cache", "parallel", "move")


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(WORKLOADS)),
    st.lists(st.sampled_from(PRIMITIVES), max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_scheduled_functions_are_read_or_refused(name: str, primitives: list[str], seed: int) -> None:
    rng = Random(seed)
    schedule = Schedule(WORKLOADS[name](), debug_mask="none")
    blocks = [node.name for node in read_dag(schedule.mod).nodes]
    for primitive in primitives:
        with contextlib.suppress(Exception):  # TVM refuses many of them
            _transform(schedule, rng.choice(blocks), primitive, rng)
    with contextlib.suppress(UnsupportedSubgraph):
        _check_axes(read_dag(schedule.mod), schedule)
