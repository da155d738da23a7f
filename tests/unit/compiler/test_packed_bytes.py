"""Successive stores of bytes are packed in groups of four vectors, with the same results."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, Let, PrimFunc, Select, Var

from compiler.codegen.packed_bytes import BYTES, WORDS, pack_bytes
from compiler.tir_nodes import contains, find_all
from tests.register_tiles import compile_tile

NATIVE = tvm.target.Target("llvm")
HASWELL = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
SKYLAKE = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "skylake-avx512"})
ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
PIXELS = 16
LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-32768, 32767)}


def _function(body: str, dtype: str = "uint8", pixels: int = PIXELS) -> tvm.IRModule:
    source = f"""
@T.prim_func(s_tir=True)
def main(values: T.Buffer(({pixels * 32},), "int32"), stored: T.Buffer(({pixels * 64},), "{dtype}")):
{body}
"""
    return tvm.IRModule({"main": tvm.script.from_source(source).with_attr("global_symbol", "main")})


def _store(pixel: str, lanes: int = 8, dtype: str = "uint8") -> str:
    """Return the statement that stores a pixel's first channels."""
    low, high = LIMITS[dtype]
    value = f"values[T.Ramp({pixel} * 32, 1, {lanes})]"
    clamped = f"T.max(T.min({value}, T.Broadcast({high}, {lanes})), T.Broadcast({low}, {lanes}))"
    return f'stored[{pixel} * 64:{pixel} * 64 + {lanes}] = T.Cast("{dtype}x{lanes}", {clamped})'


def _for(pixels: int, lanes: int = 8, dtype: str = "uint8") -> str:
    return f"    for x in range({pixels}):\n        {_store('x', lanes, dtype)}"


def _in_sequence(pixels: int, lanes: int = 8) -> str:
    return "\n".join(f"    {_store(str(pixel), lanes)}" for pixel in range(pixels))


def _packed(module: tvm.IRModule, target: tvm.target.Target = HASWELL) -> PrimFunc:
    function = module["main"].with_attr("target", target)
    return pack_bytes(tvm.IRModule({"main": function}))["main"]


@pytest.mark.parametrize(
    ("body", "groups", "lanes"),
    [
        pytest.param(_for(4), 1, [8] * 4, id="a loop over one group"),
        pytest.param(_for(7), 1, [8] * 7, id="a loop over a group and three more"),
        pytest.param(_for(PIXELS, 16), 1, [16] * 2, id="a long loop becomes one over groups"),
        pytest.param(_for(PIXELS, 32), 1, [32], id="stores as long as a group"),
        pytest.param(_for(3), 0, [8], id="fewer vectors than a group"),
        pytest.param(_in_sequence(6), 1, [8] * 6, id="a sequence"),
        pytest.param(_in_sequence(3, 24), 2, [24, 8, 16, 16, 8], id="stores across the ends of groups"),
        pytest.param(_for(4, dtype="int8"), 1, [8] * 4, id="signed bytes"),
    ],
)
def test_stores_are_packed_in_groups(body: str, groups: int, lanes: list[int]) -> None:
    function = _packed(_function(body, "int8" if '"int8' in body else "uint8"))
    assert str(function.script()).count(WORDS) == 2 * groups
    stores = find_all(function.body, BufferStore)
    assert [tvm.DataType(str(store.value.ty.dtype)).lanes for store in stores] == lanes


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("lanes", [8, 16, 24, 32])
@pytest.mark.parametrize("pixels", [4, 7, 16])
def test_packed_stores_have_the_same_results(dtype: str, lanes: int, pixels: int) -> None:
    values = np.random.default_rng(0).integers(-70000, 70000, PIXELS * 32, dtype=np.int32)
    values[::3] //= 300
    values[1::3] = np.iinfo(np.int32).max
    stored = tvm.runtime.tensor(np.zeros(PIXELS * 64, dtype))
    compile_tile(_function(_for(pixels, lanes, dtype), dtype), NATIVE)["main"](
        tvm.runtime.tensor(values), stored
    )
    expected = np.zeros((PIXELS, 64), dtype)
    expected[:pixels, :lanes] = np.clip(values.reshape(PIXELS, 32)[:pixels, :lanes], *LIMITS[dtype])
    np.testing.assert_array_equal(stored.numpy().reshape(PIXELS, 64), expected)


def test_four_vectors_take_three_packs() -> None:
    """Without groups, each takes a pack to int16, one to bytes, and an instruction that moves a half."""
    code = compile_tile(_function(_for(4)), HASWELL).mod.inspect_source("asm")
    found = Counter(re.findall(r"^\t(v?\w+)", code, re.MULTILINE))
    assert (found["vpackssdw"], found["vpackuswb"], found["vpermd"], found["vextracti128"]) == (2, 1, 1, 1)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_for(4, dtype="int16"), id="int16"),
        pytest.param(_for(4).replace("255", "127"), id="narrower bounds"),
        pytest.param(_for(4).replace("x * 64:x * 64 + 8", "T.Ramp(x * 64, 2, 8)"), id="lanes apart"),
        pytest.param(_for(4, lanes=4), id="half a vector"),
    ],
)
def test_other_stores_stay(body: str) -> None:
    assert WORDS not in str(_packed(_function(body, "int16" if '"int16' in body else "uint8")).script())


def test_a_store_that_another_reads_ends_a_group() -> None:
    later = _store("1").replace("values[T.Ramp(1 * 32, 1, 8)]", 'T.Cast("int32x8", stored[T.Ramp(0, 1, 8)])')
    body = "\n".join(f"    {each}" for each in (_store("0"), later, _store("2"), _store("3")))
    assert WORDS not in str(_packed(_function(body)).script())


def test_each_copy_of_a_store_has_variables_of_its_own() -> None:
    """LLVM's code generator refuses a variable with two values."""

    def absolute(load: TensorLoad) -> Let:
        value = Var("value", load.ty)
        return Let(value, load, Select(value > 0, value, -value))

    plain = _function(_for(7))["main"]
    function = plain.with_body(tvm_ffi.structural_map(plain.body, (TensorLoad, absolute)))
    variables = [each.var for each in find_all(_packed(tvm.IRModule({"main": function})).body, Let)]
    assert len(variables) == 7
    assert not any(contains(variables[:at], each) for at, each in enumerate(variables))


@pytest.mark.parametrize("target", [SKYLAKE, ARM], ids=["AVX-512", "Arm"])
def test_other_processors_keep_their_stores(target: tvm.target.Target) -> None:
    assert WORDS not in str(_packed(_function(_for(4)), target).script())
