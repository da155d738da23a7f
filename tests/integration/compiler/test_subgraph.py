"""TVM workloads become dags of the search."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.s_tir import Schedule

from compiler.reading.subgraph import read_dag
from search.dag import BufferRole, Dag
from tests import workloads
from tests.unit.search import dags
from tests.workloads import WORKLOADS, module


def _shape(graph: Dag) -> object:
    """Return everything that the search reads, with names replaced by positions."""
    number = {buffer.name: i for i, buffer in enumerate(graph.buffers)}
    buffers = [(b.shape, b.dtype, b.role) for b in graph.buffers]
    nodes = [
        (
            [(axis.extent, axis.kind) for axis in node.axes],
            [(number[a.buffer], a.indices) for a in (node.write, *node.reads)],
            (node.flops, node.has_branch, node.is_expensive, node.reducer),
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
def test_every_workload_is_supported(name: str) -> None:
    module = WORKLOADS[name]()
    graph = read_dag(module)
    assert [b.role for b in graph.buffers].count(BufferRole.OUTPUT) == 1
    assert graph.name == graph.nodes[-1].name
    _axes_are_loops(module, graph)


def _axes_are_loops(module: tvm.IRModule, graph: Dag) -> None:
    schedule = Schedule(module)
    for node in graph.nodes:
        loops = schedule.get_loops(schedule.get_sblock(node.name))
        assert [int(schedule.get(loop).extent) for loop in loops] == [axis.extent for axis in node.axes]


TEXTS = {
    "group_conv2d": """
        input data: float32[1, 8, 7, 7]
        input weight: float32[16, 2, 3, 3]
        output group_conv2d_nchw: float32[1, 16, 7, 7]
        pad_temp(S i0=1 i1=8 i2=9 i3=9):
            pad_temp[i0, i1, i2, i3] = (data[i0, i1, i2 - 1, i3 - 1]) branch
        group_conv2d_nchw(S nn=1 ff=16 yy=7 xx=7, R rc=2 ry=3 rx=3):
            group_conv2d_nchw[nn, ff, yy, xx] =
            sum(pad_temp[nn, 2*(ff//4) + rc, yy + ry, xx + rx], weight[ff, rc, ry, rx])
    """,
    "argmax": """
        input data: float32[12, 20]
        output data_red: int32[12]
        data_red_temp(S ax0=12, R k1=20):
            data_red_temp.v0[ax0], data_red_temp.v1[ax0] = other(data[ax0, k1]) branch
        data_red(S ax0=12): data_red[ax0] = (data_red_temp.v0[ax0])
    """,
    "gather": """
        input data: float32[10, 16]
        input positions: int64[10, 6]
        output T_gather: float32[10, 6]
        T_gather(S ax0=10 ax1=6): T_gather[ax0, ax1] = (positions[ax0, ax1], data[ax0, ?(ax0, ax1)])
    """,
    "fold_rows": """
        input data: float32[12, 20]
        output compute: float32[20, 12]
        T_reshape(S ax0=20 ax1=12): T_reshape[ax0, ax1] = (data[?(ax0, ax1), ?(ax0, ax1)])
        compute(S i0=20 i1=12): compute[i0, i1] = (T_reshape[i0, i1])
    """,
    "split_heads": """
        input data: float32[1, 6, 64]
        output T_transpose: float32[1, 4, 6, 16]
        T_reshape(S ax0=1 ax1=6 ax2=4 ax3=16): T_reshape[ax0, ax1, ax2, ax3] = (data[0, ax1, 16*ax2 + ax3])
        T_transpose(S ax0=1 ax1=4 ax2=6 ax3=16):
            T_transpose[ax0, ax1, ax2, ax3] = (T_reshape[ax0, ax2, ax1, ax3])
    """,
    "norm": """
        input data: float32[6, 40]
        output compute: float32[6]
        T_multiply(S ax0=6 ax1=40): T_multiply[ax0, ax1] = (data[ax0, ax1])
        T_multiply_red(S ax0=6, R k1=40): T_multiply_red[ax0] = sum(T_multiply[ax0, k1])
        compute(S i0=6): compute[i0] = (T_multiply_red[i0]) expensive
    """,
    "int8": """
        input a: int8[16, 32]
        input b: int8[32, 24]
        output matmul: int32[16, 24]
        matmul(S i=16 j=24, R k=32): matmul[i, j] = sum(a[i, k], b[k, j])
    """,
    "scalar": """
        input data: float32[]
        output squared: float32[]
        squared(): squared[] = (data[])
    """,
    "tiled_by_hand": """
        input a: float32[16, 8]
        input b: float32[8, 12]
        output c: float32[16, 12]
        product(S io=4 j=12 ii=4, R k=8): c[4*io + ii, j] = sum(a[4*io + ii, k], b[k, j])
    """,
    "guarded": """
        input x: float32[30]
        output y: float32[30]
        copy(S io=4 ii=8): y[8*io + ii] = (x[8*io + ii]) branch
    """,
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_workload_reads_as_the_expected_text(name: str) -> None:
    assert str(read_dag(WORKLOADS[name]())).split() == TEXTS[name].split()


def test_winograd_unrolls_the_axes_of_its_small_matrices() -> None:
    graph = read_dag(WORKLOADS["winograd"]())
    axes = {
        node.name: [node.axes[axis].name for axis in node.constant_axes]
        for node in graph.nodes
        if node.constant_axes
    }
    assert axes == {
        "data_pack": ["eps", "nu", "r_a", "r_b"],
        "kernel_pack": ["eps", "nu", "r_kh", "r_kw"],
        "inverse": ["vh", "vw", "r_a", "r_b"],
    }


def test_layout_free_buffers_are_constants() -> None:
    workload = workloads.matmul(8, 8, 8)
    marked = tvm.IRModule({"main": workload["main"].with_attr("layout_free_buffers", [1])})
    assert [b.name for b in read_dag(marked).buffers if b.constant] == ["b"]


def test_relax_marks_constants_as_layout_free_buffers() -> None:
    """TVM's own pass writes the attribute for constants of a network."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((4, 8), "float32"))
    weight = relax.const(np.ones((8, 8), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            product = builder.emit_output(builder.emit_te(topi.matmul, data, weight))
        builder.emit_func_output(product)
    written = relax.transform.AttachAttrLayoutFreeBuffers()(builder.get())
    graph = read_dag(tvm.IRModule({"main": written["matmul1"]}))
    assert [b.constant for b in graph.buffers] == [False, True, False]


def _reduction(combine: Callable[..., object]) -> str | None:
    data = te.placeholder((4, 8), name="data")
    k = te.reduce_axis((0, 8), name="k")
    (node,) = read_dag(module([data, te.compute((4,), lambda i: combine(data[i, k], axis=k))])).nodes
    return node.reducer


@pytest.mark.parametrize(
    ("combine", "expected"),
    [
        (te.sum, "sum"),
        (te.max, "max"),
        (te.min, "min"),
        (te.comm_reducer(lambda x, y: x * y, lambda dtype: tirx.const(1, dtype)), "prod"),
        (te.comm_reducer(lambda x, y: x + y, lambda dtype: tirx.const(3, dtype)), "other"),
        (te.comm_reducer(lambda x, y: x + y + x * y, lambda dtype: tirx.const(0, dtype)), "other"),
    ],
    ids=["sum", "max", "min", "prod", "not from zero", "not a single operation"],
)
def test_all_reducers_support_rfactor(combine: Callable[..., object], expected: str) -> None:
    assert _reduction(combine) == expected


def test_a_reduction_does_not_read_its_own_accumulator() -> None:
    (product,) = read_dag(workloads.matmul(8, 8, 8)).nodes
    assert [read.buffer for read in product.reads] == ["a", "b"]


def test_buffers_with_equal_names_are_renamed() -> None:
    """In fused graphs several buffers often have the same name."""
    first, second = te.placeholder((4, 4), name="x"), te.placeholder((4, 4), name="x")
    graph = read_dag(module([first, second, topi.add(first, second)]))
    assert [buffer.name for buffer in graph.buffers] == ["x", "x1", "T_add"]
    assert [read.buffer for read in graph.nodes[0].reads] == ["x", "x1"]


def test_a_numbered_name_is_not_taken_twice() -> None:
    shapes = [te.placeholder((4,), name=name) for name in ("x", "x1", "x")]
    graph = read_dag(
        module([*shapes, te.compute((4,), lambda i: shapes[0][i] + shapes[1][i] + shapes[2][i])])
    )
    assert [buffer.name for buffer in graph.buffers][:3] == ["x", "x1", "x2"]


def _reading(index: Callable[[te.Var, te.Var], object]) -> tuple[tuple[tuple[int, ...], ...], int, bool]:
    """Return the first index of the read in a computation over i < 8 and j < 4."""
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
        (lambda i, j: te.indexdiv(6 * i + j, 2) * 4 + 1, (((0, 12), (1, 4, 2)), 1, True)),
        (lambda i, j: te.indexdiv(te.indexdiv(i, 2), 3), (((0, 1, 6),), 0, True)),
        (lambda i, j: te.indexdiv(i + j + 1, 2), (((0, 1, 2), (1, 1, 2)), 0, True)),
        (lambda i, j: te.indexdiv(4 * i + j, 4), (((0, 1),), 0, True)),
        (lambda i, j: te.indexmod(4 * i + j, 4), (((1, 1),), 0, True)),
        (lambda i, j: te.indexdiv(3 * i, 2), (((0, 1),), 0, False)),
        (lambda i, j: te.indexmod(i + j, te.const(4)), (((0, 1), (1, 1)), 0, False)),
        (lambda i, j: i * j, (((0, 1), (1, 1)), 0, False)),
    ],
    ids=[
        "i",
        "4i+j",
        "2i-j+6",
        "7-i",
        "j+5",
        "i/2",
        "(6i+j)/2*4+1",
        "i/2/3",
        "(i+j+1)/2",
        "(4i+j)/4",
        "(4i+j)%4",
        "3i/2",
        "(i+j)%4",
        "i*j",
    ],
)
def test_indices_are_read_as_affine_where_possible(
    index: Callable[[te.Var, te.Var], object], expected: object
) -> None:
    assert _reading(index) == expected


def test_a_data_dependent_index_is_not_affine() -> None:
    (node,) = read_dag(workloads.take(50, 16, 12)).nodes
    by_buffer = {read.buffer: read.indices for read in node.reads}
    assert not by_buffer["table"][0].affine
    assert by_buffer["table"][1].affine


def test_calls_and_branches_are_found() -> None:
    data = te.placeholder((8,), name="data")
    (exponent,) = read_dag(module([data, topi.exp(data)])).nodes
    assert (exponent.is_expensive, exponent.has_branch, exponent.flops) == (True, False, 16.0)
    (pad,) = read_dag(module([data, topi.nn.pad(data, [1], [1])])).nodes
    assert (pad.is_expensive, pad.has_branch, pad.flops) == (False, True, 0.0)
    (size,) = read_dag(module([data, topi.floor(topi.abs(data))])).nodes[1:]
    assert (size.is_expensive, size.has_branch, size.flops) == (False, False, 1.0)
