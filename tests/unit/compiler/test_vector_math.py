from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import te, tirx

from compiler.codegen import vector_math
from compiler.codegen.vector_math import SMALLEST_NORMAL, expand_math
from compiler.target import detect_device
from tests.unit.compiler.odd_rationals import fit
from tests.workloads import module

LENGTH = 4096
NATIVE = tvm.target.Target(detect_device().target)
# The same code without fused multiply-adds rounds differently.
PLAIN = tvm.target.Target({"kind": "llvm"})

Array = NDArray[Any]
_erf = np.vectorize(math.erf, otypes=[np.float64])


REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cube": lambda x: x**3,
    "fourth": lambda x: x**4,
    "three_quarters": lambda x: np.where(np.isneginf(x), np.inf, np.sqrt(x) * np.sqrt(np.sqrt(x))),
}
POWERS = {"cube": 3.0, "fourth": 4.0, "three_quarters": 0.75}
ULPS = {"exp": 2, "exp2": 2, "log": 2, "log2": 2}
ABSOLUTE = {"tanh": 1e-6, "erf": 1e-6}
BENDS = [0.0, 1.0, 3.925, 9.0, 87.33654, 87.33655, 88.72283, 88.72284, 104.0, 126.0, 127.0, 127.99999, 128.0]
EDGES = np.array([*BENDS, math.inf, math.nan, 1e-45, 1.1754944e-38, 3.4028235e38], np.float32)


def _call(name: str, x: Any) -> Any:
    if name in POWERS:
        return tirx.power(x, tirx.const(POWERS[name], "float32"))
    return getattr(tirx, name)(x)


def _workload(name: str, dtype: str = "float32", lanes: int = 16) -> tvm.IRModule:
    data = te.placeholder((LENGTH,), dtype, name="data")
    workload = module([data, te.compute((LENGTH,), lambda i: _call(name, data[i]), name="result")])
    sch = tvm.s_tir.Schedule(workload)
    _, inner = sch.split(sch.get_loops(sch.get_sblock("result"))[0], [None, lanes])
    sch.vectorize(inner)
    return sch.mod


@cache
def _compiled(name: str, target: tvm.target.Target) -> Any:
    return tvm.compile(expand_math(_workload(name), target), target=target)["main"]


def _run(name: str, x: Array, target: tvm.target.Target = NATIVE) -> Array:
    """Compute any number of values, in calls of LENGTH."""
    padded = np.resize(x.astype(np.float32), (-(-x.size // LENGTH), LENGTH))
    results = []
    for row in padded:
        result = tvm.runtime.tensor(np.zeros(LENGTH, np.float32))
        _compiled(name, target)(tvm.runtime.tensor(row), result)
        results.append(result.numpy())
    return np.concatenate(results)[: x.size]


def _check(name: str, x: Array, actual: Array) -> None:
    with np.errstate(all="ignore"):
        wanted = REFERENCES[name](x.astype(np.float64))
        nearest = wanted.astype(np.float32)
        if name in ("exp", "exp2"):
            wanted = np.where(wanted < SMALLEST_NORMAL, np.where(actual == 0, 0.0, wanted), wanted)
        special = ~np.isfinite(nearest)
        np.testing.assert_array_equal(actual[special], nearest[special])
        ulp = np.spacing(np.maximum(np.abs(nearest), np.float32(SMALLEST_NORMAL))).astype(np.float64)
        # A sigmoid's smallest results are one over an overflow.
        least = SMALLEST_NORMAL if name == "sigmoid" else 0.0
        allowed = np.maximum(ULPS.get(name, 4) * ulp, ABSOLUTE.get(name, least))
        far = ~special & ~(np.abs(actual.astype(np.float64) - wanted) <= allowed)
    assert not far.any(), f"{name} of {x[far][:5]} is {actual[far][:5]}, not {wanted[far][:5]}"


def _sweep() -> Array:
    """All signs and exponents with 256 mantissas each, the edges, and where functions bend."""
    bits = np.arange(0, 1 << 32, (1 << 15) + 1, dtype=np.uint64).astype(np.uint32)
    dense = np.linspace(-110, 130, 1 << 16).astype(np.float32)
    near_one = np.linspace(-2, 2, 1 << 15).astype(np.float32)
    return np.concatenate([EDGES, -EDGES, bits.view(np.float32), dense, near_one])


@pytest.mark.parametrize("target", [NATIVE, PLAIN], ids=["native", "plain"])
@pytest.mark.parametrize("name", REFERENCES)
def test_functions_are_accurate_at_all_exponents(name: str, target: tvm.target.Target) -> None:
    x = _sweep()
    _check(name, x, _run(name, x, target))


@given(st.lists(st.floats(width=32), min_size=1, max_size=64), st.sampled_from(sorted(REFERENCES)))
@settings(max_examples=300)
def test_functions_are_accurate_for_any_float(values: list[float], name: str) -> None:
    x = np.array(values, np.float32)
    _check(name, x, _run(name, x))


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=2, max_size=64))
@settings(max_examples=100)
def test_exp_is_monotonic(bits: list[int]) -> None:
    """Inputs are one ulp apart, where two ranges meet. Every nan stays nan, whatever its payload."""
    x = np.sort(np.array(bits, np.uint32).view(np.float32))
    actual = _run("exp", x)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(x))
    known = actual[~np.isnan(x)]
    assert (known[1:] >= known[:-1] * np.float32(1 - 2.0**-22)).all()


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_stay_within_minus_one_and_one(name: str) -> None:
    x = np.linspace(0, 12, 1 << 16).astype(np.float32)
    assert (_run(name, x) <= 1).all()
    np.testing.assert_array_equal(_run(name, -x), -_run(name, x))


@pytest.mark.parametrize(
    ("function", "limit", "p", "q"),
    [
        (np.tanh, vector_math.TANH_LIMIT, vector_math.TANH_P, vector_math.TANH_Q),
        (_erf, vector_math.ERF_LIMIT, vector_math.ERF_P, vector_math.ERF_Q),
    ],
    ids=["tanh", "erf"],
)
def test_the_coefficients_are_fitted(
    function: Callable[[Array], Array], limit: float, p: tuple[float, ...], q: tuple[float, ...]
) -> None:
    x = np.linspace(1e-3, limit, 10_000)
    fitted_p, fitted_q = fit(function, limit, (len(p) - 1, len(q) - 1))
    fitted = x * np.polyval(fitted_p, x * x) / np.polyval(fitted_q, x * x)
    ours = x * np.polyval(p, x * x) / np.polyval(q, x * x)
    assert np.abs(fitted / function(x) - 1).max() < 3e-8
    # Rounding the coefficients to float32 may cost as much again.
    assert np.abs(ours / function(x) - 1).max() < 1e-7


def test_the_coefficients_of_the_exponential_are_accurate() -> None:
    r = np.linspace(-math.log(2) / 2, math.log(2) / 2, 10_000)
    ours = 1 - r + r * r * np.polyval(np.array(vector_math.SIGMOID_EXP, np.float32), r)
    assert np.abs(ours * np.exp(r) - 1).max() < 1e-8


def test_float64_stays_with_libm() -> None:
    before = _workload("exp", "float64")
    tvm.ir.assert_structural_equal(expand_math(before, NATIVE), before)


def test_other_targets_keep_their_functions() -> None:
    before = _workload("exp")
    assert expand_math(before, tvm.target.Target("cuda")).same_as(before)
