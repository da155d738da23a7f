"""Unsupported functions are refused with a reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import te, topi
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from tests.workloads import module


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


def _root() -> tvm.IRModule:
    x = te.placeholder((8,), name="x")
    return module([x, te.compute((8,), lambda i: te.sqrt(x[i]), name="root")])


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


def _shared_loop() -> tvm.IRModule:
    data = te.placeholder((8,), name="data")
    return module([data, *te.compute((8,), lambda i: (data[i] + 1.0, data[i] * 2.0), name="both")])


def _accumulates() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8, 4), "float32"), y: T.Buffer((8,), "float32")):
        for i, j in T.grid(8, 4):
            with T.sblock("more"):
                vi, vj = T.axis.remap("SR", [i, j])
                y[vi] = y[vi] + x[vi, vj]

    return tvm.IRModule({"main": main})


def _in_place() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("double"):
                vi = T.axis.spatial(8, i)
                y[vi] = y[vi] * T.float32(2)

    return tvm.IRModule({"main": main})


def _scatter() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), where: T.Buffer((8,), "int32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("scatter"):
                vi = T.axis.spatial(8, i)
                y[where[vi]] = x[vi]

    return tvm.IRModule({"main": main})


def _again_and_again() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i, _j in T.grid(8, 3):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]

    return tvm.IRModule({"main": main})


def _from_one() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in T.serial(1, 8):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]

    return tvm.IRModule({"main": main})


def _by_twos() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in T.serial(0, 8, step=2):
            with T.sblock("copy"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi]

    return tvm.IRModule({"main": main})


def _mixed() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8, 4), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(32):
            with T.sblock("sum"):
                vi = T.axis.spatial(8, i // 4)
                vj = T.axis.reduce(4, i % 4)
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vi, vj]

    return tvm.IRModule({"main": main})


def _library_call() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("call"):
                vi = T.axis.spatial(8, i)
                T.reads(x[vi])
                T.writes()
                T.evaluate(T.call_extern("int32", "print", x[vi]))

    return tvm.IRModule({"main": main})


def _number() -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(factor: T.float32, x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("scale"):
                vi = T.axis.spatial(8, i)
                y[vi] = x[vi] * factor

    return tvm.IRModule({"main": main})


def _empty() -> tvm.IRModule:
    data = te.placeholder((0, 4), name="data")
    return module([data, topi.exp(data)])


def _nothing() -> tvm.IRModule:
    data = te.placeholder((4,), name="data")
    return module([data])


def _cumulative() -> tvm.IRModule:
    data = te.placeholder((4, 8), name="data")
    return module([data, topi.cumsum(data, axis=1)])


def _nested() -> tvm.IRModule:
    data = te.placeholder((1, 2, 7, 7), name="data")
    return module([data, topi.nn.adaptive_pool(data, (4, 4), "avg")])


def _argument_twice() -> tvm.IRModule:
    data = te.placeholder((4,), name="data")
    return module([data, data, topi.exp(data)])


def _dynamic() -> tvm.IRModule:
    count = te.var("n")
    data = te.placeholder((count,), name="data")
    return module([data, topi.exp(data)])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_opaque_loop, "block copy: the loop i is parallel"),
        (_root, "block root has the name that TVM gives to the block around all others"),
        (_scan, "block scan has a loop i that is neither spatial nor a reduction"),
        (_bound_elsewhere, "block reverse is bound to its loops in a way that TVM can't reorder"),
        (_shared_loop, "blocks both_v0 and both_v1 share the loop i"),
        (_accumulates, "block more reduces without an initial value"),
        (_in_place, "block double reads what it stores"),
        (_scatter, "block scatter chooses by data where it stores"),
        (_again_and_again, "block copy doesn't depend on the loop _j around it"),
        (_from_one, "block copy: the loop i doesn't count from zero by ones"),
        (_by_twos, "block copy: the loop i doesn't count from zero by ones"),
        (_mixed, "block sum has a loop i that is neither spatial nor a reduction"),
        (_library_call, "block call does more than store values"),
        (_number, "factor is not a buffer of fixed shape"),
        (_empty, "block compute: the loop i0 has no iterations"),
        (_nothing, "the function is not made of blocks"),
        (_cumulative, "block cumsum_generic computes several values in one block"),
        (_nested, "block adaptive_pool_sum_l1 contains other blocks"),
        (_argument_twice, "TVM can't schedule the function: .*multiple nested definitions"),
        (_written_twice, "second writes y, which is already written"),
        (_namesake_blocks, "two nodes are called copy"),
        (_dynamic, "block compute: the loop i0 has no fixed extent"),
    ],
)
def test_an_unsupported_subgraph_says_why(make: Callable[[], tvm.IRModule], reason: str) -> None:
    with pytest.raises(UnsupportedSubgraph, match=reason):
        read_dag(make())
