"""On Arm, loops load the scalars of four steps as one vector, and multiply by its lanes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from compiler.codegen import lane_loads
from compiler.codegen.prefetch import LINE_BYTES, MIN_OPERAND_BYTES
from tests.register_tiles import compile_tile, register_tile

ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"})
NATIVE = tvm.target.Target("llvm")
COLUMNS = 8
LANE = re.compile(r"fmla.*\.s\[3\]")


@pytest.mark.parametrize(
    ("rows", "depth", "inner", "joined"),
    [
        pytest.param(4, 64, 0, True, id="a loop of whole vectors"),
        pytest.param(4, 48, 12, True, id="an inner loop"),
        pytest.param(4, 66, 0, False, id="steps that don't fill a vector"),
        pytest.param(12, 64, 0, False, id="more values than registers"),
    ],
)
def test_arm_multiplies_by_lanes_if_the_values_fit_the_registers(
    rows: int, depth: int, inner: int, joined: bool
) -> None:
    assembly = compile_tile(register_tile(rows, COLUMNS, depth, inner=inner), ARM).mod.inspect_source("s")
    assert bool(LANE.search(assembly)) == joined


def test_a_step_of_a_joined_loop_reads_its_own_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums are compared on this machine, whose instructions have no lanes."""
    rng = np.random.default_rng(0)
    for dtype, depth, inner in (("float32", 64, 0), ("float32", 48, 12), ("float64", 64, 0)):
        data, weight = rng.uniform(size=(4, depth)), rng.uniform(size=(depth, COLUMNS))
        results = []
        for joined in (False, True):
            monkeypatch.setattr(lane_loads, "is_arm", lambda _, joined=joined: joined)
            built = compile_tile(register_tile(4, COLUMNS, depth, dtype, inner), NATIVE)
            result = tvm.runtime.tensor(np.zeros((4, COLUMNS), dtype))
            built["main"](*(tvm.runtime.tensor(one.astype(dtype)) for one in (data, weight)), result)
            results.append(result.numpy())
        np.testing.assert_allclose(results[1], data @ weight, rtol=1e-5)
        np.testing.assert_array_equal(results[1], results[0])


def test_a_line_is_prefetched_once_for_all_vectors_in_it() -> None:
    depth = MIN_OPERAND_BYTES // (COLUMNS * 4)
    assembly = compile_tile(register_tile(4, COLUMNS, depth), ARM).mod.inspect_source("s")
    assert LANE.search(assembly)
    steps = 4
    assert assembly.count("prfm") == steps * COLUMNS * 4 // LINE_BYTES
