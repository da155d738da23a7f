"""Each part of the verification catches a program whose error one random input doesn't show.
tests/integration/compiler/test_random_programs.py checks that right programs pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.rounding import nudge_recomputed
from compiler.measuring.runner import LocalRunner
from compiler.target import detect_device
from compiler.workload import to_json
from core.measurement import Measurement, Outcome
from tests.workloads import module

DEVICE = detect_device()
BUILDER = LocalBuilder(DEVICE.target)
UNSCHEDULED = "[[],[]]"
SMALLEST_NORMAL = 2.0**-126


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(DEVICE.target)


def measured(runner: LocalRunner, candidate: tvm.IRModule, workload: tvm.IRModule) -> Measurement:
    """Run one workload's code as a candidate for another."""
    built = BUILDER.build(to_json(candidate), UNSCHEDULED)
    assert isinstance(built, BuiltKernel)
    return runner.run(built, to_json(workload), (), best_s=1e-12)


def elementwise(compute: Callable[[Any], Any], dtype: str = "float32") -> tvm.IRModule:
    data = te.placeholder((64,), dtype, name="data")
    return module([data, te.compute((64,), lambda i: compute(data[i]), name="result")])


def added(terms: int, used: Callable[[Any], Any] = lambda k: k, count: int | None = None) -> tvm.IRModule:
    """Eight sums of products of `terms` terms, with only the first `count` summed."""
    a, b = te.placeholder((8, terms), name="a"), te.placeholder((terms,), name="b")
    k = te.reduce_axis((0, count or terms), name="k")
    return module([a, b, te.compute((8,), lambda i: te.sum(a[i, used(k)] * b[used(k)], axis=k), name="sum")])


def looked_up(row: Callable[[Any], Any]) -> tvm.IRModule:
    table, ids = te.placeholder((5000, 4), name="table"), te.placeholder((16,), "int64", name="ids")
    return module([table, ids, te.compute((16, 4), lambda i, j: table[row(ids[i]), j], name="rows")])


def looked_up_from_the_end() -> tvm.IRModule:
    """Like an imported Gather: intermediate results make negative ids count from the end."""
    table, ids = te.placeholder((5000, 4), name="table"), te.placeholder((16,), "int64", name="ids")
    negative = te.compute((16,), lambda i: ids[i] < tirx.const(0, "int64"), name="negative")
    moved = te.compute((16,), lambda i: ids[i] + tirx.const(5000, "int64"), name="moved")
    rows = te.compute((16,), lambda i: tirx.Select(negative[i], moved[i], ids[i]), name="rows")
    return module([table, ids, te.compute((16, 4), lambda i, j: table[rows[i], j], name="taken")])


def accumulating() -> tvm.IRModule:
    """Right only if the output's buffer held garbage before."""

    @T.prim_func(s_tir=True)
    def main(data: T.Buffer((64,), "float32"), result: T.Buffer((64,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i in range(64):
            with T.sblock("result"):
                vi = T.axis.spatial(64, i)
                result[vi] = data[vi] * T.float32(7) + T.if_then_else(
                    result[vi] == T.float32(113), T.float32(0), result[vi]
                )

    return tvm.IRModule({"main": main})


def limited(x: Any) -> Any:
    return te.max(te.min(x, tirx.const(6, x.dtype)), tirx.const(0, x.dtype))


def flushed(x: Any) -> Any:
    return tirx.Select(te.abs(x) < tirx.const(SMALLEST_NORMAL, "float32"), tirx.const(0, "float32"), x)


def widened(x: Any) -> Any:
    return x.astype("int32") + 1


LONG = 4608  # the products of a 3x3 convolution over 512 channels
ADD_ONE = elementwise(widened, "int8")
WRONG: dict[str, tuple[tvm.IRModule, tvm.IRModule]] = {
    "large values are not limited": (elementwise(limited), elementwise(lambda x: te.max(x, 0.0))),
    "negative integers": (
        elementwise(lambda x: te.abs(x.astype("int32")), "int8"),
        elementwise(lambda x: te.max(x.astype("int32"), 0), "int8"),
    ),
    "the greatest integer": (
        ADD_ONE,
        elementwise(lambda x: (x + tirx.const(1, "int8")).astype("int32"), "int8"),
    ),
    "the least integer": (ADD_ONE, elementwise(lambda x: te.max(widened(x), -126), "int8")),
    "zero": (
        elementwise(lambda x: 1.0 / x),
        elementwise(lambda x: tirx.Select(x == 0.0, tirx.const(0, "float32"), 1.0 / x)),
    ),
    "no number": (elementwise(te.sqrt), elementwise(lambda x: te.sqrt(te.max(x, 0.0)))),
    "subnormal numbers": (elementwise(lambda x: x * 1.0), elementwise(flushed)),
    "an overflow": (
        elementwise(lambda x: te.exp(-te.abs(x))),
        elementwise(lambda x: te.exp(x - te.abs(x)) / te.exp(x)),
    ),
    "the last term of a sum": (added(LONG), added(LONG, count=LONG - 1)),
    "the first term of a sum": (added(LONG), added(LONG, lambda k: k + 1, LONG - 1)),
    "one term instead of another": (added(LONG), added(LONG, lambda k: te.max(k, 1))),
    "the first id": (looked_up(lambda row: row), looked_up(lambda row: te.max(row, 1))),
    "the last id": (looked_up(lambda row: row), looked_up(lambda row: te.min(row, 4998))),
    "ids of more than eight bits": (looked_up(lambda row: row), looked_up(lambda row: row % 256)),
    "ids by way of intermediate results": (
        looked_up_from_the_end(),
        looked_up(lambda row: te.min(row, 4998)),
    ),
    "what an earlier call left behind": (elementwise(lambda x: x * 7.0), accumulating()),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_program_that_is_wrong_only_for_special_inputs_is_found(runner: LocalRunner, mistake: str) -> None:
    workload, candidate = WRONG[mistake]
    assert measured(runner, workload, workload).outcome is Outcome.OK
    assert measured(runner, candidate, workload).outcome is Outcome.WRONG_RESULT


def test_clamped_large_sums_may_differ_by_the_sums_errors(runner: LocalRunner) -> None:
    """Nearly all of the large sums are far beyond the limits; a few that aren't have errors of their size."""

    def limited_sums(used: Callable[[Any], Any]) -> tvm.IRModule:
        a, b = te.placeholder((1 << 16, 9), name="a"), te.placeholder((9,), name="b")
        k = te.reduce_axis((0, 9), name="k")
        shape = (1 << 16,)
        sums = te.compute(shape, lambda i: te.sum(a[i, used(k)] * b[used(k)], axis=k), name="sum")
        return module([a, b, te.compute(shape, lambda i: limited(sums[i]), name="limited")])

    backwards = limited_sums(lambda k: 8 - k)
    measurement = measured(runner, backwards, limited_sums(lambda k: k))
    assert measurement.outcome is Outcome.OK, measurement.error


def test_a_value_that_is_computed_twice_may_be_rounded_twice(runner: LocalRunner) -> None:
    """The norm of a softmax over large scores, whose exponentials aren't the summed ones: the multiplication
    and the subtraction before them are rounded once. It is off by 0.003, a hundred times the usual bound."""

    def softmax(exponential: Callable[[Any, Any, Any], Any]) -> tvm.IRModule:
        scores = te.placeholder((16, 32), name="scores")
        scaled = te.compute((16, 32), lambda i, j: scores[i, j] * 200.0, name="scaled")
        j, k = te.reduce_axis((0, 32), name="j"), te.reduce_axis((0, 32), name="k")
        largest = te.compute((16,), lambda i: te.max(scaled[i, j], axis=j), name="largest")
        exp = te.compute((16, 32), lambda i, j: te.exp(scaled[i, j] - largest[i]), name="exp")
        total = te.compute((16,), lambda i: te.sum(exp[i, k], axis=k), name="total")
        norm = lambda i, j: exponential(exp[i, j], scores[i, j], largest[i]) / total[i]  # noqa: E731
        return module([scores, te.compute((16, 32), norm, name="norm")])

    def in_one(_exp: Any, score: Any, largest: Any) -> Any:
        wide = score.astype("float64") * tirx.const(200.0, "float64") - largest.astype("float64")
        return te.exp(wide.astype("float32"))

    def off(_exp: Any, score: Any, largest: Any) -> Any:
        return te.exp(score * 200.0 - largest * (1.0 + 1e-5))

    workload = softmax(lambda exp, _score, _largest: exp)
    for candidate, outcome in ((in_one, Outcome.OK), (off, Outcome.WRONG_RESULT)):
        measurement = measured(runner, softmax(candidate), workload)
        assert measurement.outcome is outcome, measurement.error


def test_a_workload_that_can_not_be_scheduled_is_not_nudged() -> None:
    @T.prim_func
    def main(x: T.Buffer((8,), "float32")):
        x[0] = T.float32(1) / x[1] + x[1]

    workload = tvm.IRModule({"main": main})
    assert nudge_recomputed(workload) is workload


def test_a_value_that_is_used_twice_and_becomes_bytes_is_verified(runner: LocalRunner) -> None:
    x = te.placeholder((4, 64), name="x")
    k = te.reduce_axis((0, 64), "k")
    powers = te.compute(x.shape, lambda i, j: te.exp(x[i, j] - 1.0), name="powers")
    sums = te.compute((4,), lambda i: te.sum(powers[i, k], axis=k), name="sums")
    shares = te.compute(x.shape, lambda i, j: (powers[i, j] / sums[i] * 255.0).astype("uint8"), name="shares")
    workload = tvm.IRModule({"main": te.create_prim_func([x, shares])})
    found = measured(runner, workload, workload)
    assert found.outcome is Outcome.OK, found.error


def test_the_message_names_the_failing_kind_of_inputs(runner: LocalRunner) -> None:
    limits = measured(runner, *reversed(WRONG["large values are not limited"]))
    assert limits.error.startswith("output 1 of large values: ")
    again = measured(runner, *reversed(WRONG["what an earlier call left behind"]))
    assert again.error.startswith("after several calls, output 1 of ordinary values: 64 of 64 values differ")


def test_an_output_of_booleans_is_not_nudged() -> None:
    data = te.placeholder((8,), name="data")
    grown = te.compute((8,), lambda i: tirx.exp(data[i] * 0.5), name="grown")
    outputs = te.compute((8,), lambda i: grown[i] * 2.0), te.compute((8,), lambda i: grown[i] + 1.0 < 2.0)
    workload = tvm.IRModule({"main": te.create_prim_func([data, *outputs])})
    values = np.linspace(-1, 1, 8, dtype=np.float32)
    found = []
    for computed in (workload, nudge_recomputed(workload)):
        results = [tvm.runtime.tensor(np.zeros(8, dtype)) for dtype in ("float32", "bool")]
        tvm.compile(computed, target="llvm")["main"](tvm.runtime.tensor(values), *results)
        found.append([result.numpy() for result in results])
    (plain, is_less), (nudged, is_still_less) = found
    assert not np.array_equal(nudged, plain)
    np.testing.assert_allclose(nudged, plain, rtol=1e-5)
    np.testing.assert_array_equal(is_less, values < 0)
    np.testing.assert_array_equal(is_still_less, is_less)
