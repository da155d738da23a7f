"""Prefetch the operands that loops stream.

Hardware prefetching stops at the end of a page, so the core waits for the first rows of the next page. A
network's weights aren't in a cache when their layer begins.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import (
    Add,
    AllocBuffer,
    AttrStmt,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    Mul,
    PrimFunc,
    Ramp,
    SeqStmt,
    Shuffle,
    Sub,
    Var,
)

from compiler.codegen.nests import INTERMEDIATE
from compiler.codegen.rewrite import rewrite_prim_funcs, with_body, with_loop_body
from compiler.tir_nodes import contains, find_all, num_lanes, op_name, statements_of

# How far ahead of a load to prefetch: the bytes that a core multiplies during one memory access.
AHEAD_BYTES = 8192
LINE_BYTES = 64
# Smaller operands stay in the L1 cache.
MIN_OPERAND_BYTES = 32768
# Rows of a loop that is repeated stay in the L1 cache if they are at most this large.
MAX_REPEATED_BYTES = 16384
# The most lines that one iteration prefetches for others.
MAX_LINES = 64

# The key of an element's buffer and index without the index's constant summand, and this summand.
_Place = tuple[Any, int]
_NAME = "tunefarm_prefetch"
# LLVM assumes that its prefetch intrinsic may write into accumulators, and stores them in every iteration.
# This wrapper is declared to touch only inaccessible memory, so accumulators stay in registers.
_FUNCTION = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr hidden i32 @{_NAME}(ptr %address) alwaysinline nounwind {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 3, i32 1) memory(inaccessiblemem: readwrite)
  ret i32 0
}}
"""


def prefetch_operands(module: tvm.IRModule) -> tvm.IRModule:
    """Prefetch large parameters that loops accumulate, in the innermost loop that moves along them.

        for k in range(512):
            c[0:16] = c[0:16] + broadcast(a[k]) * b[k * 16 : k * 16 + 16]
    ->
        for k in range(512):
            c[0:16] = c[0:16] + broadcast(a[k]) * b[k * 16 : k * 16 + 16]
            prefetch(b[k * 16 + 2048])

    Packed operands are read in address order, so these are the next rows. Elements that an earlier iteration
    read, such as those of a convolution's previous row, are still in a cache.

    Iterations of a loop around, such as over a tile's rows, read the same elements. Each prefetches a part:

        for i in range(8):
            for k in range(16):
                c[i * 16 : i * 16 + 16] = ... + broadcast(a[i * 512 + k]) * b[k * 16 : k * 16 + 16]
            prefetch(b[i * 32 + 2048])
            prefetch(b[i * 32 + 2064])
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    own: list[Any] = []
    declared: list[DeclBuffer] = []
    loops: list[For] = []
    streamed = _Streamed(own, function.attrs.get(INTERMEDIATE, ()))
    tvm_ffi.structural_walk(
        function.body,
        [
            (AllocBuffer, lambda each: own.append(each.buffer)),
            (DeclBuffer, declared.append),
            (For, loops.append),  # inner loops come first
            (TensorLoad, streamed.see_load),
            (BufferStore, streamed.see_store),
        ],
    )
    # TVM declares buffers over the memory of an allocated one.
    own += [each.buffer for each in declared if any(contains(own, of) for of in find_all(each.data, Var))]
    rows: defaultdict[int, list[Any]] = defaultdict(list)
    for load in streamed.loads():
        used: list[Any] = []
        tvm_ffi.structural_walk(load.indices[-1], [(Var, used.append)])
        innermost = next((at for at, loop in enumerate(loops) if contains(used, loop.loop_var)), None)
        if innermost is not None:
            rows[innermost] += _rows(load)
    if not rows:
        return function
    numbers = {loop.loop_var: at for at, loop in reversed(list(enumerate(loops)))}
    around = dict(_loops_around(function.body, loops, numbers))
    calls: defaultdict[int, list[Any]] = defaultdict(list)
    for innermost, found in rows.items():
        lines = list(_one_a_line(_read_first(found, loops)))
        for at, call in _prefetches(lines, [innermost, *around[innermost]], loops):
            calls[at].append(call)

    def prefetch(loop: For) -> For:
        at = numbers[loop.loop_var]
        if at not in calls:
            return loop
        # At the end of the body, its variables are bound.
        return with_loop_body(loop, SeqStmt([*statements_of(loop.body), *calls[at]]))

    body = tvm_ffi.structural_map(function.body, (For, prefetch))
    return with_body(function, AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_FUNCTION), body))


def _loops_around(
    body: Any, inner_first: Sequence[For], numbers: Mapping[Var, int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the number of each loop in a body, and the numbers of the loops around it, innermost first."""
    outer_first: list[For] = []
    tvm_ffi.structural_walk(body, (For, outer_first.append), order="pre")
    ended = 0
    around: list[For] = []  # innermost first
    for loop in outer_first:
        while around and around[0].same_as(inner_first[ended]):
            around.pop(0)
            ended += 1
        yield numbers[loop.loop_var], tuple(numbers[each.loop_var] for each in around)
        around.insert(0, loop)


def _prefetches(
    lines: Sequence[TensorLoad], nest: Sequence[int], loops: Sequence[For]
) -> Iterator[tuple[int, Any]]:
    """Yield a loop's number and a statement that prefetches, for each line that the innermost loop of a nest
    reads. Iterations of a loop that repeats the same reads share them.
    """
    for line in lines:
        used = find_all(line.indices[-1], Var)
        moving, repeating = _repetition(used, nest, loops)
        steps, repeats = _iterations(moving, loops), _iterations(repeating, loops)
        share = -(-steps // repeats)
        size = max(LINE_BYTES, _item_bytes(line)) * len(lines) * steps
        if not repeating or size > MAX_REPEATED_BYTES or share * len(lines) > MAX_LINES:
            yield nest[0], _prefetch(line)
            continue
        iteration = _joined(repeating, loops)
        sharers = -(-steps // share)
        for part in range(share):
            values = _split(iteration * share + part, moving, loops)
            found = _prefetch(_with_values(line, values, loops))
            yield repeating[0], found if sharers == repeats else IfThenElse(iteration < sharers, found, None)


def _prefetch(line: TensorLoad) -> Evaluate:
    return Evaluate(tirx.call_extern("int32", _NAME, tirx.address_of(line)))


def _repetition(
    used: Sequence[Var], nest: Sequence[int], loops: Sequence[For]
) -> tuple[list[int], list[int]]:
    """Return the inner loops of a nest that move an element by the variables `used`, and the loops right
    around them that don't; both innermost first."""
    moving: list[int] = []
    repeating: list[int] = []
    of_loops = [loop.loop_var for loop in loops]
    if not all(contains(of_loops, each) for each in used):
        return moving, repeating  # such variables are bound inside
    for at in nest:
        loop = loops[at]
        is_plain = loop.kind in (ForKind.SERIAL, ForKind.UNROLLED) and isinstance(loop.extent, IntImm)
        is_moving = contains(used, loop.loop_var)
        if not is_plain or int(loop.min) != 0 or (is_moving and repeating):
            break
        (moving if is_moving else repeating).append(at)
    return moving, repeating


def _iterations(numbers: Sequence[int], loops: Sequence[For]) -> int:
    return math.prod(int(loops[at].extent) for at in numbers)


def _joined(numbers: Sequence[int], loops: Sequence[For]) -> Any:
    """Return the number of an iteration of several loops, innermost first."""
    joined: Any = 0
    for at in reversed(numbers):
        joined = joined * int(loops[at].extent) + loops[at].loop_var
    return joined


def _split(joined: Any, numbers: Sequence[int], loops: Sequence[For]) -> dict[int, Any]:
    """Return the variables' values in an iteration of several loops, innermost first, by its number."""
    values = {}
    for at in numbers[:-1]:
        extent = int(loops[at].extent)
        values[at] = tirx.floormod(joined, extent)
        joined = tirx.floordiv(joined, extent)
    return values | {numbers[-1]: joined}


def _with_values(line: TensorLoad, values: Mapping[int, Any], loops: Sequence[For]) -> TensorLoad:
    def value(variable: Var) -> Any:
        return next((each for at, each in values.items() if loops[at].loop_var.same_as(variable)), variable)

    return tirx.BufferLoad(
        line.source, [tvm_ffi.structural_map(index, (Var, value)) for index in line.indices]
    )


class _Streamed:
    """Finds the distinct vector loads from large buffers that are added to sums, in a walk that visits inner
    nodes first. It leaves out the sums themselves, the function's `own` buffers, and the parameters with the
    names `intermediate`.
    """

    def __init__(self, own: list[Any], intermediate: Sequence[str]) -> None:
        self._own = own
        self._intermediate = frozenset(intermediate)
        self._found: dict[Any, TensorLoad] = {}
        self._is_large: dict[Any, bool] = {}
        self._since_store: list[TensorLoad] = []

    def see_load(self, load: TensorLoad) -> None:
        self._since_store.append(load)

    def see_store(self, store: BufferStore) -> None:
        """Search the store's value only if it may add a load to those found: an unrolled loop has hundreds of
        stores, and most of them repeat these loads.
        """
        # Also the loads in the store's indices, and in conditions before it.
        loads, self._since_store = self._since_store, []
        if all(tvm_ffi.StructuralKey(load) in self._found for load in self._streamed(loads, store)):
            return
        loads = find_all(store.value, TensorLoad)
        # `load_lanes` reads one lane of a vector at a time, and dot products broadcast four bytes, so these
        # loads don't stream.
        parts = [*find_all(store.value, Shuffle), *filter(_is_scalar_of_bytes, find_all(store.value, Call))]
        lanes = [load for each in parts for load in find_all(each, TensorLoad)]
        loads = [load for load in loads if not contains(lanes, load)]
        self._found |= {tvm_ffi.StructuralKey(load): load for load in self._streamed(loads, store)}

    def loads(self) -> Iterable[TensorLoad]:
        # Whether a buffer is the function's own is known after the walk.
        return (
            load
            for load in self._found.values()
            if load.source.name not in self._intermediate and not contains(self._own, load.source)
        )

    def _streamed(self, loads: Sequence[TensorLoad], store: BufferStore) -> Iterator[TensorLoad]:
        """Yield the loads that may stream, of those that a store adds to its buffer."""
        others = [load for load in loads if not load.source.same_as(store.buffer)]
        return filter(self._may_stream, others if len(others) < len(loads) else [])

    def _may_stream(self, load: TensorLoad) -> bool:
        if load.source not in self._is_large:
            self._is_large[load.source] = _bytes(load) >= MIN_OPERAND_BYTES
        return self._is_large[load.source] and _is_vector(load)


def _is_vector(load: TensorLoad) -> bool:
    at = load.indices[-1]
    return isinstance(at, Ramp) and isinstance(at.stride, IntImm) and int(at.stride) == 1


def _is_scalar_of_bytes(call: Call) -> bool:
    return op_name(call) == "reinterpret" and num_lanes(call) == 1


def _rows(load: TensorLoad) -> Iterator[Any]:
    """Yield an element of each cache line that lies AHEAD_BYTES after this load."""
    *outer, last = load.indices
    item = _item_bytes(load)
    for offset in range(0, int(last.lanes) * item, LINE_BYTES):
        ahead = tirx.const((AHEAD_BYTES + offset) // item, last.base.ty.dtype)
        yield tirx.BufferLoad(load.source, [*outer, last.base + ahead])


def _read_first(rows: list[TensorLoad], loops: list[For]) -> Iterator[tuple[TensorLoad, _Place]]:
    """Yield the elements that no earlier iteration of a loop around them has read, and their places.

        for y in range(8): c[0:16] = c[0:16] + a[y * 64 : y * 64 + 16] + a[y * 64 + 64 : y * 64 + 80]
    ->
        a[y * 64 + 64]
    """
    analyzer = Analyzer()
    places = [_place(row, analyzer) for row in rows]
    read: defaultdict[Any, set[int]] = defaultdict(set)
    for base, offset in places:
        read[base].add(offset)
    steps: dict[Any, set[int]] = {}
    for row, (base, offset) in zip(rows, places, strict=True):
        if base not in steps:
            steps[base] = set(_steps(analyzer.simplify(row.indices[-1]), [loop.loop_var for loop in loops]))
        if not any(offset + step in read[base] for step in steps[base]):
            yield row, (base, offset)


def _steps(index: Any, variables: Sequence[Var]) -> Iterator[int]:
    """Yield how much an index grows with loops' variables, or with the parts of a fused loop's variable.

        f // 24 * 768 + f % 24 * 16 + x * 144
    ->
        768, 16, 144
    """
    if isinstance(index, Add):
        yield from _steps(index.a, variables)
        yield from _steps(index.b, variables)
        return
    term, step = (index.a, index.b) if isinstance(index, Mul) else (index, None)
    is_moved = any(contains(variables, each) for each in find_all(term, Var))
    if is_moved and (step is None or isinstance(step, IntImm)):
        yield 1 if step is None else int(step)


def _one_a_line(rows: Iterable[tuple[TensorLoad, _Place]]) -> Iterator[TensorLoad]:
    """Yield the elements that are a line or more away from all that were yielded before."""
    yielded: defaultdict[Any, list[int]] = defaultdict(list)
    for row, (base, offset) in rows:
        near = yielded[base]
        at = offset * _item_bytes(row)
        if all(abs(at - other) >= LINE_BYTES for other in near):
            near.append(at)
            yield row


def _place(row: TensorLoad, analyzer: Analyzer) -> _Place:
    """Return the constant summand of an element's index, after a key of the element without it."""
    *outer, last = row.indices
    base, offset = analyzer.simplify(last), 0
    if isinstance(base, Add | Sub) and isinstance(base.b, IntImm):
        base, offset = base.a, int(base.b) if isinstance(base, Add) else -int(base.b)
    return tvm_ffi.StructuralKey(tirx.BufferLoad(row.source, [*outer, base])), offset


def _bytes(load: TensorLoad) -> int:
    """Return the size of a load's buffer in bytes; 0 if its shape isn't constant."""
    shape = load.source.ty.shape
    if not all(isinstance(extent, IntImm) for extent in shape):
        return 0
    return math.prod(map(int, shape)) * _item_bytes(load)


def _item_bytes(load: TensorLoad) -> int:
    return -(-tvm.DataType(str(load.source.ty.dtype)).bits // 8)
