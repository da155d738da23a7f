"""On x86, quantizers round by one instruction and clamp while they pack, with the same results. NaN becomes
the lower bound."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx
from tvm.s_tir import Schedule

from compiler.codegen.compilation import compile_scheduled
from tests.workloads import module

HASWELL = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
LANES, LENGTH = 32, 77
# The type, the zero, the bounds, and the type of the result, which is converted from the first.
QUANTIZERS = {
    "bytes": ("uint8", 0.0, 0.0, 255.0, "uint8"),
    "signed bytes": ("int8", 0.0, -128.0, 127.0, "int8"),
    "a zero": ("uint8", 121.0, 0.0, 255.0, "uint8"),
    "a negative zero": ("int8", -7.0, -128.0, 127.0, "int8"),
    "narrower bounds": ("int8", 0.0, -5.0, 6.0, "int8"),
    "two bytes": ("int16", 0.0, -121.0, 134.0, "int16"),
    "two bytes without a zero": ("int16", 0.0, 0.0, 255.0, "int16"),
    "floats": ("int16", 0.0, -121.0, 134.0, "float32"),
    "floats of bytes": ("uint8", 121.0, 0.0, 255.0, "float32"),
}


def _quantizer(name: str, length: int = LENGTH) -> tvm.IRModule:
    dtype, zero, low, high, read = QUANTIZERS[name]
    data = te.placeholder((length,), "float32", name="data")

    def quantized(i: tirx.Var) -> tirx.PrimExpr:
        whole = tirx.nearbyint(data[i])
        moved = whole + tirx.const(zero, "float32") if zero else whole
        bounds = tirx.const(low, "float32"), tirx.const(high, "float32")
        if dtype == "int16":
            whole = tirx.Min(moved, bounds[1]).astype("int32")
            return tirx.Max(whole, tirx.const(int(low), "int32")).astype(dtype).astype(read)
        return tirx.Min(tirx.Max(moved, bounds[0]), bounds[1]).astype(dtype).astype(read)

    schedule = Schedule(module([data, te.compute((length,), quantized)]))
    (block,) = schedule.get_child_blocks(schedule.get_sblock("root"))
    (loop,) = schedule.get_loops(block)
    schedule.vectorize(schedule.split(loop, [None, LANES])[-1])
    return schedule.mod


def _floats(length: int) -> NDArray[np.float32]:
    """NaN, halves between integers, their neighbours, and floats that no int32 holds."""
    halves = np.arange(-140, 260, 0.5, dtype=np.float32)
    large = np.array([3e9, -3e9, 1e30, -1e30, math.inf, -math.inf, 2**31, -(2**31), 8388609.5], np.float32)
    large = np.append(large, np.float32(math.nan))
    near = np.concatenate([np.nextafter(halves, np.float32(side)) for side in (-1e9, 1e9)])
    return np.resize(np.concatenate([large, halves, near]), length)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizers_have_the_same_results(name: str) -> None:
    _, zero, low, high, read = QUANTIZERS[name]
    data = _floats(3017)
    result = tvm.runtime.tensor(np.zeros(data.shape, read))
    library, _ = compile_scheduled(_quantizer(name, len(data)), tvm.target.Target("llvm"))
    library["main"](tvm.runtime.tensor(data), result)
    wanted = np.clip(np.round(np.nan_to_num(data)) + np.float32(zero), low, high).astype(read)
    wanted[np.isnan(data)] = low
    np.testing.assert_array_equal(result.numpy(), wanted)


def _instructions(name: str, target: tvm.target.Target) -> Counter[str]:
    """Count the instructions for a vector of 32 elements."""
    library, _ = compile_scheduled(_quantizer(name, LANES), target)
    return Counter(re.findall(r"^\t(v?\w+)", library.mod.inspect_source("asm"), re.MULTILINE))


def test_32_bytes_take_four_conversions_and_three_packs() -> None:
    found = _instructions("bytes", HASWELL)
    assert (found["vcvtps2dq"], found["vpackssdw"], found["vpackuswb"]) == (4, 2, 1)
    assert (found["vminps"], found["vmaxps"], found["vroundps"], found["vcvttps2dq"]) == (4, 0, 0, 0)
    found = _instructions("a zero", HASWELL)
    assert (found["vcvtps2dq"], found["vpackssdw"], found["vpackuswb"]) == (4, 2, 1)
    assert (found["vminps"], found["vmaxps"], found["vroundps"]) == (4, 0, 4)


def test_a_lower_bound_costs_one_instruction_a_register_of_results() -> None:
    found = _instructions("two bytes", HASWELL)
    assert (found["vminps"], found["vcvtps2dq"], found["vpackssdw"], found["vpmaxsw"]) == (4, 4, 2, 2)
    assert (found["vmaxps"], found["vpmaxsd"]) == (0, 0)
    found = _instructions("floats", HASWELL)
    assert (found["vminps"], found["vroundps"], found["vmaxps"]) == (4, 4, 4)
    assert (found["vcvtps2dq"], found["vcvtdq2ps"]) == (0, 0)


def test_arm_converts_as_before() -> None:
    assert _instructions("bytes", ARM)["frinti"]
