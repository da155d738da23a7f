"""Vectors of elements that lie apart are short."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.tirx import For, ForKind

from compiler.codegen.compilation import compile_functions
from compiler.codegen.gathered_lanes import MAX_LANES, gather_short_vectors
from compiler.target import detect_device, parse_target
from compiler.tir_nodes import find_all

NATIVE = parse_target(detect_device().target)
ROWS = 8


def _copy(lanes: int, element: str, first: int = 0) -> tvm.IRModule:
    """Return a function that copies rows of `lanes` elements from a matrix, with a vector for each row. The
    loop over the vector begins at `first`.
    """
    source = f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer(({lanes}, {lanes}), "float32"), b: T.Buffer(({ROWS}, {lanes}), "float32")):
    with T.sblock("root"):
        for i in range({ROWS}):
            for j in T.vectorized({first}, {first + lanes}):
                with T.sblock("b"):
                    v_i, v_j = T.axis.spatial({ROWS}, i), T.axis.spatial({lanes}, j - {first})
                    T.reads(a[0:{lanes}, 0:{lanes}])
                    T.writes(b[v_i, v_j])
                    b[v_i, v_j] = {element}
"""
    return tvm.IRModule({"main": tvm.script.from_source(source).with_attr("global_symbol", "main")})


def _lanes(module: tvm.IRModule) -> list[int]:
    loops = find_all(module["main"].body, For)
    return [int(loop.extent) for loop in loops if loop.kind == ForKind.VECTORIZED]


@pytest.mark.parametrize(("lanes", "short"), [(64, 16), (128, 16), (24, 12), (100, 10), (68, 4)])
@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("first", [0, 320])
def test_columns_are_gathered_in_short_vectors(lanes: int, short: int, guard: bool, first: int) -> None:
    element = "T.if_then_else(v_i < 5, a[v_j, v_i], T.float32(0))" if guard else "a[v_j, v_i]"
    module = gather_short_vectors(_copy(lanes, element, first), NATIVE)
    assert _lanes(module) == [short]
    a = np.random.default_rng(0).random((lanes, lanes), "float32")
    b = tvm.runtime.tensor(np.empty((ROWS, lanes), "float32"))
    compile_functions(module, NATIVE, check_arguments=True)["main"](tvm.runtime.tensor(a), b)
    expected = a.T[:ROWS].copy()
    if guard:
        expected[5:] = 0
    np.testing.assert_array_equal(b.numpy(), expected)


@pytest.mark.parametrize(
    ("lanes", "element"),
    [
        pytest.param(64, "a[v_i, v_j]", id="adjacent elements"),
        pytest.param(64, "a[v_i, 3]", id="one element"),
        pytest.param(64, "a[(v_i * 64 + v_j) // 64, (v_i * 64 + v_j) % 64]", id="a row of a flat matrix"),
        pytest.param(MAX_LANES, "a[v_j, v_i]", id="already short"),
        pytest.param(67, "a[v_j, v_i]", id="a prime number of lanes"),
    ],
)
def test_other_vectors_stay(lanes: int, element: str) -> None:
    module = _copy(lanes, element)
    tvm.ir.assert_structural_equal(gather_short_vectors(module, NATIVE), module)


@pytest.mark.parametrize("element", ["a[v_j // 2 * 2, v_i]", "a[v_i, v_j * 3 % 64]", "a[v_i, 63 - v_j]"])
def test_any_other_order_is_gathered(element: str) -> None:
    assert _lanes(gather_short_vectors(_copy(64, element), NATIVE)) == [MAX_LANES]


def test_gpus_keep_their_vectors() -> None:
    module = _copy(64, "a[v_j, v_i]")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    tvm.ir.assert_structural_equal(gather_short_vectors(module, target), module)
