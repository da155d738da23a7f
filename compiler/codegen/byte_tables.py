"""Take bytes from tables by instructions that shuffle bytes, for x86.

LLVM would load each byte by itself.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import Add, Broadcast, Cast, IntImm, Let, PrimFunc, Ramp, Var

from compiler.codegen.rewrite import (
    features_of,
    map_body,
    rewrite_prim_funcs,
    shuffled,
    with_distinct_variables,
)
from compiler.precision.tables import TABLE_SIZE
from compiler.tir_nodes import find_all

# The elements that an instruction chooses from, and the difference between the halves of a table.
SEGMENT, HALF = 16, 128
# What is added to bytes of a type to get the place in a table.
OFFSETS = {"int8": HALF, "uint8": 0}
# LLVM's names of the instructions by the number of their lanes, and the feature that they need.
SHUFFLES = {32: ("llvm.x86.avx2.pshuf.b", "avx2"), 16: ("llvm.x86.ssse3.pshuf.b.128", "ssse3")}


def take_by_shuffles(module: tvm.IRModule) -> tvm.IRModule:
    """Take vectors of bytes from tables of 256 bytes.

        y[0:32] = table[T.Cast("int32x32", x)]               # x: uint8x32
    ->
        low, high = x, x ^ 128
        y[0:32] = pshufb(t(0), low) ^ pshufb(t(1) ^ t(0), low - 16) ^ pshufb(t(2) ^ t(1), low - 32) ^ ...
                ^ pshufb(t(8), high) ^ pshufb(t(9) ^ t(8), high - 16) ^ ...

    `t(k)` are the elements from `16 * k` on. The instruction reads four bits of an index, and returns zero if
    the index is negative. So only the terms up to the index's own `t(k)` count. Their exclusive or is an
    element of this `t(k)`, because each other `t` occurs twice.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    features = features_of(function)
    lanes = next((lanes for lanes, (_, feature) in SHUFFLES.items() if feature in features), 0)
    if not lanes:
        return function
    if not any(map(_is_table, {load.source for load in find_all(function.body, TensorLoad)})):
        return function
    taken = map_body(function, (TensorLoad, lambda load: _taken(load, lanes)))
    return taken if taken.same_as(function) else with_distinct_variables(taken)


def place_in_table(value: Any) -> Any | None:
    """Return the vector of bytes by which a value is taken from a table; None for other values."""
    if not isinstance(value, TensorLoad) or len(value.indices) != 1:
        return None
    if not _is_table(value.source):
        return None
    [place] = value.indices
    offset = 0
    while isinstance(place, Add):
        place, added = (place.b, place.a) if isinstance(place.a, Broadcast) else (place.a, place.b)
        if not isinstance(added, Broadcast) or not isinstance(added.value, IntImm):
            return None
        offset += int(added.value)
    if not isinstance(place, Cast) or not str(place.ty.dtype).startswith("int32x"):
        return None
    dtype = str(tvm.DataType(str(place.value.ty.dtype)).with_lanes(1))
    return place.value if OFFSETS.get(dtype) == offset else None


def _is_table(buffer: Any) -> bool:
    """Return whether a buffer has the type and the size of a table."""
    if str(buffer.ty.dtype) not in OFFSETS or len(buffer.ty.shape) != 1:
        return False
    [extent] = buffer.ty.shape
    return isinstance(extent, IntImm) and int(extent) == TABLE_SIZE


def taken_by(load: TensorLoad, vector: Any) -> TensorLoad:
    """Return the elements that another vector of the same type of bytes chooses from a load's table."""
    dtype = tvm.DataType(str(vector.ty.dtype))
    place: Any = Cast(f"int32x{dtype.lanes}", vector)
    if offset := OFFSETS[str(dtype.with_lanes(1))]:
        place = place + Broadcast(tirx.const(offset, "int32"), dtype.lanes)
    return tirx.BufferLoad(load.source, [place])


def _taken(load: TensorLoad, widest: int) -> Any:
    """Return the elements of a load from a table by instructions; other loads unchanged."""
    places = place_in_table(load)
    if places is None:
        return load
    dtype = tvm.DataType(str(places.ty.dtype))
    variable = places if isinstance(places, Var) else Var("places", places.ty)
    lanes = widest if dtype.lanes > SEGMENT else SEGMENT
    # Lanes behind the last are filled with the first ones.
    count = -(-dtype.lanes // lanes)
    filled = [variable] * -(-count * lanes // dtype.lanes)
    parts = [shuffled(filled, range(lanes * part, lanes * part + lanes)) for part in range(count)]
    signed = [tirx.reinterpret(f"int8x{lanes}", part) for part in parts]
    is_signed = OFFSETS[str(dtype.with_lanes(1))] > 0
    vectors = [_combined(load.source, part, lanes, is_signed) for part in signed]
    result = shuffled(vectors, range(dtype.lanes))
    taken = tirx.reinterpret(str(load.ty.dtype), result)
    return taken if variable is places else Let(variable, places, taken)


def _combined(table: Any, places: Any, lanes: int, is_signed: bool) -> Any:
    """Return the elements at these places of a table. Each half of the table gives zeros for the places in
    the other half. Signed places are negative in the first half, unsigned ones in the second.
    """
    name, _ = SHUFFLES[lanes]
    vector = f"int8x{lanes}"
    flipped = tirx.bitwise_xor(places, Broadcast(tirx.const(-HALF, "int8"), lanes))
    terms = []
    for first, half in ((HALF * is_signed, places), (HALF * (not is_signed), flipped)):
        for start in range(0, HALF, SEGMENT):
            elements = _segment(table, first + start, lanes)
            if start:
                step = Broadcast(tirx.const(SEGMENT, "int8"), lanes)
                half = tirx.call_llvm_pure_intrin(vector, "llvm.ssub.sat", half, step)
                elements = tirx.bitwise_xor(elements, _segment(table, first + start - SEGMENT, lanes))
            terms.append(tirx.call_llvm_pure_intrin(vector, name, elements, half))
    return reduce(tirx.bitwise_xor, terms)


def _segment(table: Any, first: int, lanes: int) -> Any:
    """Return a segment of a table, repeated to fill a vector."""
    elements = tirx.BufferLoad(table, [Ramp(tirx.const(first, "int32"), tirx.const(1, "int32"), SEGMENT)])
    repeated = shuffled([elements] * (lanes // SEGMENT), range(lanes))
    return tirx.reinterpret(f"int8x{lanes}", repeated)
