"""TVM's workloads in the search's own form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import te, topi
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

from compiler.subgraph import NotCovered, read_dag
from search.dag import BufferRole, Dag
from tests import workloads
from tests.unit.search import dags
from tests.workloads import WORKLOADS, module


def _shape(graph: Dag) -> object:
    """Everything that the search looks at; names by their position."""
    number = {buffer.name: i for i, buffer in enumerate(graph.buffers)}
    buffers = [(b.shape, b.dtype, b.role) for b in graph.buffers]
    nodes = [
        (
            [(axis.extent, axis.kind) for axis in node.axes],
            [(number[a.buffer], a.indices) for a in (node.write, *node.reads)],
            (node.flops, node.has_branch, node.is_expensive),
        )
        for node in graph.nodes
    ]
    return buffers, nodes


@pytest.mark.parametrize(
    ("module", "graph"),
    [
        (workloads.conv2d(14, 16, 32, 3, 1, 1), dags.conv2d()),
        (workloads.matmul(32, 48, 64), dags.matmul()),
        (workloads.depthwise(14, 32, 3, 1), dags.depthwise()),
        (workloads.max_pool(14, 32), dags.max_pool()),
        (workloads.global_pool(7, 64), dags.global_pool()),
        (workloads.softmax(16, 40), dags.softmax()),
        (workloads.add_relu(14, 24), dags.add_relu()),
        (workloads.transpose(24, 40), dags.transpose()),
        (workloads.take(50, 16, 12), dags.take()),
        (workloads.scale_shift(16, 32), dags.scale_shift()),
        (workloads.total(64), dags.total()),
    ],
    ids=lambda value: value.name if isinstance(value, Dag) else "",
)
def test_a_workload_is_the_dag_written_by_hand(module: tvm.IRModule, graph: Dag) -> None:
    assert _shape(read_dag(module)) == _shape(graph)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_covered(name: str) -> None:
    graph = read_dag(WORKLOADS[name]())
    assert [b.role for b in graph.buffers].count(BufferRole.OUTPUT) == 1
    assert graph.name == graph.nodes[-1].name


def test_a_reduction_does_not_read_its_own_accumulator() -> None:
    (product,) = read_dag(workloads.matmul(8, 8, 8)).nodes
    assert [read.buffer for read in product.reads] == ["a", "b"]


def test_namesakes_are_told_apart() -> None:
    """Fused graphs name many a buffer the same."""
    first, second = te.placeholder((4, 4), name="x"), te.placeholder((4, 4), name="x")
    graph = read_dag(module([first, second, topi.add(first, second)]))
    assert [buffer.name for buffer in graph.buffers] == ["x", "x1", "T_add"]
    assert [read.buffer for read in graph.nodes[0].reads] == ["x", "x1"]


def test_namesakes_are_no_others_name() -> None:
    shapes = [te.placeholder((4,), name=name) for name in ("x", "x1", "x")]
    graph = read_dag(
        module([*shapes, te.compute((4,), lambda i: shapes[0][i] + shapes[1][i] + shapes[2][i])])
    )
    assert [buffer.name for buffer in graph.buffers][:3] == ["x", "x1", "x2"]


def _reading(index: Callable[[te.Var, te.Var], object]) -> tuple[tuple[tuple[int, ...], ...], int, bool]:
    """The first index of one read, of a computation over i < 8 and j < 4."""
    data = te.placeholder((64,), name="data")
    result = te.compute((8, 4), lambda i, j: data[index(i, j)])
    (node,) = read_dag(module([data, result])).nodes
    (found,) = node.reads[0].indices
    terms = tuple(tuple(term) if term.divisor > 1 else term[:2] for term in found.terms)
    return terms, found.offset, found.affine


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (lambda i, j: i, (((0, 1),), 0, True)),
        (lambda i, j: 4 * i + j, (((0, 4), (1, 1)), 0, True)),
        (lambda i, j: (i + 3) * 2 - j, (((0, 2), (1, -1)), 6, True)),
        (lambda i, j: 7 - i, (((0, -1),), 7, True)),
        (lambda i, j: i - i + j + 5, (((1, 1),), 5, True)),
        (lambda i, j: te.indexdiv(i, 2), (((0, 1, 2),), 0, True)),
        (lambda i, j: te.indexmod(i + j, te.const(4)), (((0, 1), (1, 1)), 0, False)),
        (lambda i, j: i * j, (((0, 1), (1, 1)), 0, False)),
    ],
    ids=["i", "4i+j", "2i-j+6", "7-i", "j+5", "i/2", "(i+j)%4", "i*j"],
)
def test_indices_are_affine_where_they_can_be(
    index: Callable[[te.Var, te.Var], object], expected: object
) -> None:
    assert _reading(index) == expected


def test_a_data_dependent_index_touches_anything() -> None:
    (node,) = read_dag(workloads.take(50, 16, 12)).nodes
    by_buffer = {read.buffer: read.indices for read in node.reads}
    assert not by_buffer["table"][0].affine
    assert by_buffer["table"][1].affine


def test_calls_and_branches_are_noticed() -> None:
    data = te.placeholder((8,), name="data")
    (exponent,) = read_dag(module([data, topi.exp(data)])).nodes
    assert (exponent.is_expensive, exponent.has_branch, exponent.flops) == (True, False, 16.0)
    (pad,) = read_dag(module([data, topi.nn.pad(data, [1], [1])])).nodes
    assert (pad.is_expensive, pad.has_branch, pad.flops) == (False, True, 0.0)


def _opaque_loop() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in T.parallel(8):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]

    return tvm.IRModule({"main": main})


def _scan() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("scan"):
                vi = T.axis.opaque(8, i)
                y[vi] = T.if_then_else(vi > 0, y[vi - 1], T.float32(0)) + x[vi]

    return tvm.IRModule({"main": main})


def _bound_elsewhere() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("reverse"):
                vi = T.axis.spatial(8, 7 - i)
                y[vi] = x[vi]

    return tvm.IRModule({"main": main})


def _written_twice() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("first"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]
        for i in range(8):
            with T.sblock("second"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi] + T.float32(1)

    return tvm.IRModule({"main": main})


def _namesake_blocks() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32"), z: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]
        for i in range(8):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                z[vi] = y[vi]

    return tvm.IRModule({"main": main})


def _dynamic() -> tvm.IRModule:
    count = te.var("n")
    data = te.placeholder((count,), name="data")
    return module([data, topi.exp(data)])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_opaque_loop, "block copy: the loop i is parallel"),
        (_scan, "block scan has a loop i that is neither spatial nor a reduction"),
        (_bound_elsewhere, "block reverse is bound to its loops in a way that TVM can't reorder"),
        (_written_twice, "second writes y, which is already written"),
        (_namesake_blocks, "two nodes are called copy"),
        (_dynamic, "block compute: the loop i0 has no fixed extent"),
    ],
)
def test_what_is_not_covered_says_why(make: Callable[[], tvm.IRModule], reason: str) -> None:
    with pytest.raises(NotCovered, match=reason):
        read_dag(make())
