"""Vectors of bytes are taken from tables by shuffles, with the same results as element by element."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm.ir import TensorLoad

from compiler.codegen.byte_tables import place_in_table, take_by_shuffles
from compiler.codegen.packed_bytes import WORDS, pack_bytes
from compiler.target import detect_device, is_x86, parse_target
from compiler.tir_nodes import find_all
from tests.register_tiles import compile_tile

NATIVE = parse_target(detect_device().target)
HASWELL = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
NEHALEM = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "nehalem"})
ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
OFFSETS = {"uint8": "", "int8": " + T.Broadcast(128, {lanes})"}


def _source(lanes: int, dtype: str = "uint8", stored: str = "uint8") -> str:
    place = f'T.Cast("int32x{lanes}", x[T.Ramp(i * {lanes}, 1, {lanes})])' + OFFSETS[dtype]
    return f"""
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer((768,), "{dtype}"), table: T.Buffer((256,), "{stored}"), y: T.Buffer((768,), "{stored}")
):
    for i in range({768 // lanes}):
        y[i * {lanes}:i * {lanes} + {lanes}] = table[{place.format(lanes=lanes)}]
"""


def _look_up(lanes: int, dtype: str = "uint8", stored: str = "uint8") -> tvm.IRModule:
    function = tvm.script.from_source(_source(lanes, dtype, stored))
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


@pytest.mark.parametrize("lanes", [8, 16, 24, 32, 64])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("stored", ["uint8", "int8"])
def test_every_byte_chooses_its_element(lanes: int, dtype: str, stored: str) -> None:
    rng = np.random.default_rng(0)
    table = rng.permutation(256).astype(np.uint8).view(stored)
    x = np.concatenate([rng.permutation(256) for _ in range(3)]).astype(np.uint8).view(dtype)
    y = tvm.runtime.tensor(np.zeros(768, stored))
    library = compile_tile(_look_up(lanes, dtype, stored), NATIVE)
    assert not is_x86(NATIVE) or "pshufb" in library.mod.inspect_source("asm")
    library["main"](*map(tvm.runtime.tensor, (x, table)), y)
    np.testing.assert_array_equal(y.numpy(), table[x.astype(int) - np.iinfo(dtype).min])


@pytest.mark.parametrize(("target", "count"), [(HASWELL, 16), (NEHALEM, 32), (ARM, 0)])
def test_a_vector_takes_sixteen_shuffles(target: tvm.target.Target, count: int) -> None:
    """Nehalem's shuffles are half as long, so it takes 32. For Arm, nothing changes."""
    function = _look_up(32)["main"].with_attr("target", target)
    taken = take_by_shuffles(tvm.IRModule({"main": function}))["main"]
    assert str(taken.script()).count("pshuf.b") == count


@pytest.mark.parametrize(
    "other", [("(256,)", "(128,)"), ('"int32x32"', '"int16x32"'), (")])]", ")]) + T.Broadcast(1, 32)]")]
)
def test_other_loads_stay(other: tuple[str, str]) -> None:
    loads = find_all(tvm.script.from_source(_source(32).replace(*other)).body, TensorLoad)
    assert loads
    assert not any(place_in_table(load) is not None for load in loads)


@pytest.mark.parametrize("pixels", [4, 7])
def test_elements_of_packed_groups_are_taken_together(pixels: int) -> None:
    clamped = "T.max(T.min(values[T.Ramp(i * 8, 1, 8)], T.Broadcast(255, 8)), T.Broadcast(0, 8))"
    source = f"""
@T.prim_func(s_tir=True)
def main(values: T.Buffer((128,), "int32"), table: T.Buffer((256,), "int8"), y: T.Buffer((128,), "int8")):
    for i in range({pixels}):
        y[i * 8:i * 8 + 8] = table[T.Cast("int32x8", T.Cast("uint8x8", {clamped}))]
"""
    module = tvm.IRModule({"main": tvm.script.from_source(source).with_attr("global_symbol", "main")})
    function = module["main"].with_attr("target", HASWELL)
    packed = pack_bytes(tvm.IRModule({"main": function}))["main"]
    loads = [load for load in find_all(packed.body, TensorLoad) if place_in_table(load) is not None]
    assert [tvm.DataType(str(load.ty.dtype)).lanes for load in loads] == [32] + [8] * (pixels - 4)
    assert str(packed.script()).count(WORDS) == 2
    rng = np.random.default_rng(0)
    values, table = rng.integers(-300, 600, 128, dtype=np.int32), rng.permutation(256).astype(np.int8)
    y = tvm.runtime.tensor(np.zeros(128, np.int8))
    compile_tile(module, NATIVE)["main"](*map(tvm.runtime.tensor, (values, table)), y)
    expected = np.where(np.arange(128) < pixels * 8, table[np.clip(values, 0, 255)], 0)
    np.testing.assert_array_equal(y.numpy(), expected)
