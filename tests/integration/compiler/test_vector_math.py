"""Compiled kernels with mathematical functions don't call libm, and their results are right."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx, topi
from tvm.s_tir import Schedule

from compiler.codegen.vector_math import FUNCTIONS, expand_math
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.target import detect_device
from compiler.tir_nodes import find_all
from compiler.workload import to_json
from core.measurement import Outcome
from tests.marks import slow_lane_except
from tests.workloads import layer_norm, module, softmax

DEVICE = detect_device()
BUILDER = LocalBuilder(DEVICE.target)
NATIVE = tvm.target.Target(json.loads(DEVICE.target))
LENGTH = 512
LIBM = re.compile(r"@(?:llvm\.)?(?:exp2?|log(?:2|10|1p)?|tanh|erf|pow)f?[.(]")


def _gelu(x: Any) -> Any:
    return x * 0.5 * (1.0 + tirx.erf(x * 0.70710678))


def _mish(x: Any) -> Any:
    """Nest three functions: TVM would take long to compile all, so the third stays a call."""
    return x * tirx.tanh(tirx.log1p(tirx.exp(x)))


def _elementwise(compute: Any, dtype: str = "float32", length: int = LENGTH) -> tvm.IRModule:
    data = te.placeholder((length,), dtype, name="data")
    return module([data, te.compute((length,), lambda i: compute(data[i]), name="result")])


def _scheduled(workload: tvm.IRModule, lanes: int, unrolled: int = 1) -> Schedule:
    sch = Schedule(workload)
    loop = sch.get_loops(sch.get_sblock("result"))[-1]
    _, repeat, lane = sch.split(loop, [None, unrolled, lanes])
    sch.unroll(repeat)
    sch.vectorize(lane)
    return sch


def _compile(workload: tvm.IRModule) -> Any:
    return tvm.compile(expand_math(workload, NATIVE), target=NATIVE)


def _run(library: Any, *arguments: NDArray[Any]) -> NDArray[Any]:
    """Call a kernel and return the contents of its last argument."""
    placed = [tvm.runtime.tensor(argument) for argument in arguments]
    library["main"](*placed)
    return placed[-1].numpy()


def _values(count: int = LENGTH, scale: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(0).standard_normal(count) * scale).astype(np.float32)


@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_call_is_left_in_a_vector_loop(name: str, lanes: int) -> None:
    workload = _scheduled(_elementwise(getattr(tirx, name)), lanes).mod
    assert not LIBM.search(_compile(workload).mod.inspect_source("ll"))


def test_the_check_finds_a_call() -> None:
    library = tvm.compile(_scheduled(_elementwise(tirx.exp), 16).mod, target=NATIVE)
    assert LIBM.search(library.mod.inspect_source("ll"))


def test_the_third_of_nested_functions_stays_a_call() -> None:
    text = expand_math(_scheduled(_elementwise(_mish), 16).mod, NATIVE).script()
    assert "T.tanh" in text
    assert "T.exp" not in text
    assert "T.log1p" not in text


@pytest.mark.skipif("avx512f" not in DEVICE.features, reason="counts AVX-512's registers")
@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_a_vectorized_exp_is_vector_code(lanes: int) -> None:
    assembly = _compile(_scheduled(_elementwise(tirx.exp), lanes).mod).mod.inspect_source("asm")
    # Six steps of Horner's rule and two of the reduction, fused, for every sixteen lanes.
    assert len(re.findall(r"vfn?m\w+ps\s.*zmm", assembly)) >= 8 * lanes // 16


@pytest.mark.skipif("avx2" not in DEVICE.features, reason="x86's minimum keeps NaN of one operand")
@pytest.mark.parametrize("name", ["erf", "sigmoid", "tanh"])
def test_limits_are_minima_and_maxima(name: str) -> None:
    assembly = _compile(_scheduled(_elementwise(getattr(tirx, name)), 16).mod).mod.inspect_source("asm")
    assert {"vminps", "vmaxps"} <= set(re.findall(r"v\w+ps", assembly))
    assert not re.search(r"vcmp\w*ps|vblend\w*ps", assembly)


@pytest.mark.parametrize("name", ["erf", "tanh"])
@pytest.mark.parametrize(("divisor", "divisions"), [(2.0**0.5, 1), (-3.0, 1), (1e-39, 2)])
def test_a_quotient_of_a_normal_number_becomes_a_product(name: str, divisor: float, divisions: int) -> None:
    """The inverse of a subnormal number is no float32."""
    function = getattr(tirx, name)
    workload = _elementwise(lambda x: function(x / tirx.const(divisor, "float32")))
    expanded = expand_math(workload, NATIVE)
    assert len(find_all(expanded["main"].body, tirx.Div)) == divisions
    x = _values()
    x[:6] = np.inf, -np.inf, np.nan, 0.0, -0.0, 1e38
    found = _run(tvm.compile(expanded, target=NATIVE), x, np.zeros_like(x))
    with np.errstate(over="ignore"):
        wide = x.astype(np.float64) / np.float32(divisor)
    expected = np.array([getattr(math, name)(value) for value in wide])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert np.array_equal(np.signbit(found[3:5]), np.signbit(expected[3:5]))


@pytest.mark.parametrize("unrolled", [1, 4])
def test_nested_functions_are_right(unrolled: int) -> None:
    x = _values()
    actual = _run(_compile(_scheduled(_elementwise(_mish), 16, unrolled).mod), x, np.zeros_like(x))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(actual, wide * np.tanh(np.log1p(np.exp(wide))), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 2e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("lanes", [1, 16])
def test_float16_is_computed_in_float32(dtype: str, rtol: float, lanes: int) -> None:
    library = _compile(_scheduled(_elementwise(_mish, dtype), lanes, 2).mod)
    x = tvm.runtime.empty((LENGTH,), dtype)
    values = _values().astype(x.numpy().dtype)
    x.copyfrom(values)
    result = tvm.runtime.empty((LENGTH,), dtype)
    library["main"](x, result)
    wide = values.astype(np.float64)
    expected = wide * np.tanh(np.log1p(np.exp(wide)))
    np.testing.assert_allclose(result.numpy().astype(np.float64), expected, rtol=3 * rtol, atol=rtol)


def test_a_guarded_read_stays_guarded() -> None:
    """Only the condition of the padding keeps the read in bounds."""
    data = te.placeholder((100,), name="data")
    padded = te.compute(
        (LENGTH,),
        lambda i: tirx.if_then_else(i < 100, tirx.exp(data[i]), tirx.const(0.0, "float32")),
        name="result",
    )
    x = _values(100)
    actual = _run(_compile(_scheduled(module([data, padded]), 16).mod), x, np.ones(LENGTH, np.float32))
    np.testing.assert_allclose(actual, np.r_[np.exp(x), np.zeros(LENGTH - 100)], rtol=1e-6)


def _attention(rows: int, columns: int) -> tvm.IRModule:
    """Compute attention: scores under a causal mask, their softmax, a mean of the values."""
    scores, values = (te.placeholder((rows, rows), name="scores"), te.placeholder((rows, columns), name="v"))
    masked = te.compute(
        (rows, rows), lambda i, j: tirx.Select(j <= i, scores[i, j], tirx.const(-1e9, "float32")), name="mask"
    )
    return module([scores, values, topi.matmul(topi.nn.softmax(masked), values)])


WORKLOADS = {
    "softmax": lambda: softmax(64, 256),
    "gelu": lambda: _elementwise(_gelu, length=1 << 14),
    "layer norm": lambda: layer_norm(64, 256),
    "attention": lambda: _attention(64, 32),
    "local response": lambda: _elementwise(
        lambda x: x / tirx.power(x * x + 1.0, tirx.const(0.75, "float32"))
    ),
}


@pytest.mark.parametrize("name", slow_lane_except(WORKLOADS, "softmax", seconds=0.3))
def test_candidates_agree_with_the_reference(name: str) -> None:
    """The runner's reference is TVM's own code, which calls libm."""
    workload = to_json(WORKLOADS[name]())
    runner = LocalRunner(DEVICE.target)
    built = BUILDER.build(workload, "[[],[]]")
    assert isinstance(built, BuiltKernel), built.error
    assert not LIBM.search(built.library.mod.inspect_source("ll"))
    assert runner.run(built, workload, ()).outcome is Outcome.OK
