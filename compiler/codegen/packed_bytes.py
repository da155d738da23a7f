"""Pack the results of quantizers four vectors at a time, for x86 with AVX2.

LLVM packs the vectors of each store by themselves. A vector of eight bytes takes as many instructions as four
of them together. AVX-512 has instructions that narrow one vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.tirx import (
    Bind,
    Broadcast,
    BufferStore,
    Cast,
    For,
    ForKind,
    IntImm,
    Let,
    Max,
    Min,
    PrimFunc,
    Ramp,
    SeqStmt,
    Var,
)

from compiler.codegen.byte_tables import place_in_table, taken_by
from compiler.codegen.quantizers import LIMITS
from compiler.codegen.rewrite import (
    features_of,
    map_body,
    rewrite_prim_funcs,
    shuffled,
    with_distinct_variables,
)
from compiler.tir_nodes import contains, find_all, num_lanes, statements_of

# Results of int32 in a vector, and vectors in a group.
LANES, GROUP = 8, 4
# LLVM's names of the instructions that pack int32 into int16, and int16 into bytes.
WORDS = "llvm.x86.avx2.packssdw"
BYTES = {"int8": "llvm.x86.avx2.packsswb", "uint8": "llvm.x86.avx2.packuswb"}
# These pack the halves of registers separately. This order of four-byte parts restores the order of vectors.
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
# Loops that store more vectors become loops over groups.
MAX_UNROLLED = 16


class _Part(NamedTuple):
    """A vector of the results that a store converts, from the lane `first`."""

    store: BufferStore
    first: int


def pack_bytes(module: tvm.IRModule) -> tvm.IRModule:
    """Convert groups of four vectors of int32 that successive stores clamp and store as bytes.

        for x in range(4): B[x * 64 : x * 64 + 8] = T.Cast("uint8x8", T.max(T.min(v(x), 255), 0))
    ->
        packed = packuswb(packssdw(v(0), v(1)), packssdw(v(2), v(3)))
        packed = shuffle(packed, [0, 1, 2, 3, 16, 17, 18, 19, ...])
        B[0:8] = shuffle(packed, [0, 1, 2, 3, 4, 5, 6, 7])
        B[64:72] = shuffle(packed, [8, 9, 10, 11, 12, 13, 14, 15])
        ...

    The instructions saturate, so they clamp the values. If bytes are taken from a table by the values, the
    elements of a group are taken together.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    features = features_of(function)
    if "avx2" not in features or "avx512f" in features:
        return function
    if not any(_vectors(store) for store in find_all(function.body, BufferStore)):
        return function
    packed = map_body(function, [(For, _unrolled), (SeqStmt, _in_groups)])
    if packed.same_as(function) or not find_all(packed.body, Let):
        return packed
    return with_distinct_variables(packed)


def _unrolled(loop: For) -> Any:
    """Return a loop over a store as one over groups, or its bodies without a loop; other loops unchanged."""
    vectors = _vectors(loop.body)
    is_counted = isinstance(loop.extent, IntImm) and isinstance(loop.min, IntImm) and not int(loop.min)
    if not vectors or not is_counted or loop.step is not None or loop.kind != ForKind.SERIAL:
        return loop
    extent = int(loop.extent)
    copies = extent if extent * vectors <= MAX_UNROLLED else -(-GROUP // vectors)
    if extent % copies or copies * vectors < GROUP:
        return loop
    dtype = loop.loop_var.ty.dtype
    counter = Var(loop.loop_var.name, dtype)

    def at(copy: int) -> BufferStore:
        place = tirx.const(copy, dtype) if copies == extent else counter * copies + copy
        return tvm_ffi.structural_map(
            loop.body, (Var, lambda each: place if each.same_as(loop.loop_var) else each)
        )

    body = SeqStmt(list(_packed([at(copy) for copy in range(copies)])))
    if copies == extent:
        return body
    groups = tirx.const(extent // copies, dtype)
    return For(counter, loop.min, groups, loop.kind, body, annotations=loop.annotations)


def _in_groups(sequence: SeqStmt) -> SeqStmt:
    """Return a sequence in which groups of successive stores are computed together."""
    before = statements_of(sequence)
    statements = [each for run in _runs(before) for each in _packed(run)]
    is_same = len(statements) == len(before)
    return sequence if is_same else SeqStmt(statements)


def _runs(statements: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of statements: stores of bytes that may be computed together, or one other statement."""
    run: list[Any] = []
    for each in statements:
        if run and not (_vectors(run[-1]) and _vectors(each) and _is_independent([*run, each])):
            yield run
            run = []
        run.append(each)
    if run:
        yield run


def _is_independent(stores: Sequence[BufferStore]) -> bool:
    """Return whether stores have one type and table, and none reads what one of them may have stored."""
    written = [store.buffer for store in stores]
    is_read = any(contains(written, load.source) for load in find_all(stores[-1].value, TensorLoad))
    table, last = _table(stores[0]), _table(stores[-1])
    is_same_table = last is None if table is None else table.same_as(last)
    return not is_read and is_same_table and _type(stores[0]) == _type(stores[-1])


def _vectors(statement: Any) -> int:
    """Return how many whole vectors of int32 a statement clamps and stores as bytes; 0 for others."""
    conversion = _conversion(statement)
    if conversion is None:
        return 0
    dtype, clamped, at = _type(statement), conversion.value, statement.indices[-1]
    if dtype not in BYTES or not isinstance(clamped, Max) or not isinstance(clamped.a, Min):
        return 0
    bounds = [clamped.b, clamped.a.b]
    if not all(isinstance(each, Broadcast) and isinstance(each.value, IntImm) for each in bounds):
        return 0
    are_limits = tuple(int(each.value) for each in bounds) == LIMITS[dtype]
    is_dense = isinstance(at, Ramp) and isinstance(at.stride, IntImm) and int(at.stride) == 1
    if not are_limits or not is_dense:
        return 0
    found = tvm.DataType(str(clamped.ty.dtype))
    is_int32 = str(clamped.ty.dtype).startswith("int32x")
    return 0 if not is_int32 or found.lanes % LANES else found.lanes // LANES


def _conversion(statement: Any) -> Cast | None:
    """Return the conversion of what a statement stores, or by which it takes it from a table."""
    if not isinstance(statement, BufferStore) or str(statement.buffer.ty.dtype) not in BYTES:
        return None
    places = place_in_table(statement.value)
    value = statement.value if places is None else places
    return value if isinstance(value, Cast) else None


def _table(store: BufferStore) -> Any:
    """Return the variable of the table from which a store takes its values; None if from none."""
    return None if place_in_table(store.value) is None else store.value.source


def _type(store: BufferStore) -> str:
    """Return the type of the bytes that a store converts to."""
    conversion: Any = _conversion(store)
    return str(tvm.DataType(str(conversion.ty.dtype)).with_lanes(1))


def _packed(run: Sequence[Any]) -> Iterator[Any]:
    """Yield the statements that store all groups of a run together, and the others by themselves."""
    parts = [_Part(store, LANES * at) for store in run for at in range(_vectors(store))]
    grouped = len(parts) // GROUP * GROUP
    if not grouped:
        yield from run
        return
    for start in range(0, grouped, GROUP):
        group = parts[start : start + GROUP]
        packed = Var("packed", f"{_type(run[0])}x{GROUP * LANES}")
        yield Bind(packed, _together(group))
        if _table(run[0]) is not None:
            taken = taken_by(run[0].value, packed)
            packed = Var("taken", taken.ty)
            yield Bind(packed, taken)
        yield from _stores(group, packed)
    rest = parts[grouped:]
    for part in rest:
        cast: Any = _conversion(part.store)
        value: Any = Cast(f"{_type(part.store)}x{LANES}", _piece(cast.value, part.first))
        yield _stored(part, value if _table(part.store) is None else taken_by(part.store.value, value))


def _together(group: Sequence[_Part]) -> Any:
    """Return the bytes of a group in one vector."""
    conversions: list[Any] = [_conversion(part.store) for part in group]
    one, other, third, fourth = (
        _piece(conversion.value.a.a, part.first) for conversion, part in zip(conversions, group, strict=True)
    )
    words = [
        tirx.call_llvm_pure_intrin(f"int16x{2 * LANES}", WORDS, *pair)
        for pair in ((one, other), (third, fourth))
    ]
    dtype = _type(group[0].store)
    mixed = tirx.call_llvm_pure_intrin(f"{dtype}x{GROUP * LANES}", BYTES[dtype], *words)
    return tirx.reinterpret(
        f"{dtype}x{GROUP * LANES}", shuffled([tirx.reinterpret(f"int32x{LANES}", mixed)], ORDER)
    )


def _stores(group: Sequence[_Part], packed: Any) -> Iterator[BufferStore]:
    """Yield the stores of a group's bytes. Neighbours of one store stay together."""
    first = 0
    while first < GROUP:
        count = sum(part.store.same_as(group[first].store) for part in group[first:])
        lanes = range(first * LANES, (first + count) * LANES)
        value = packed if count == GROUP else shuffled([packed], lanes)
        yield _stored(group[first], value)
        first += count


def _stored(part: _Part, value: Any) -> BufferStore:
    *outer, last = part.store.indices
    lanes = num_lanes(value)
    return BufferStore(part.store.buffer, value, [*outer, Ramp(last.base + part.first, last.stride, lanes)])


def _piece(vector: Any, first: int) -> Any:
    """Return a vector's lanes from `first` on that fill a register."""
    if num_lanes(vector) == LANES:
        return vector
    return shuffled([vector], range(first, first + LANES))
