"""The quantities of Ansor's cost model for every stored buffer (paper section 5.2, appendix B): 164 numbers a
statement, for a whole population at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.cost.stores import LoopKind, Loops, Store
from search.dag import Access, Buffer, Dag, Operations
from search.programs.nest import Floats, region

LINE_BYTES = 64
# So many of a statement's buffers are described, those that touch most cache lines.
BUFFERS = 5
SAMPLES = 10
# Where no loop reads again, counts are divided by half: it is worse than one reuse.
NO_REUSE = 0.5
ANNOTATIONS = (LoopKind.VECTORIZED, LoopKind.UNROLLED, LoopKind.PARALLEL)
POSITIONS = 8
NO_POSITION, MIXED_POSITION = 0, 7
GPU = 8

GROUPS: dict[str, int] = {
    "floating point": 7,
    "integers": 7,
    "conditions": 2,
    **{f"{kind.name.lower()}": 3 + POSITIONS for kind in ANNOTATIONS},
    "gpu": GPU,
    **{
        f"buffer {number}: {name}": width
        for number in range(BUFFERS)
        for name, width in (
            ("access", 3),
            ("bytes", 1),
            ("unique bytes", 1),
            ("lines", 1),
            ("unique lines", 1),
            ("reuse", 3),
            ("reuse distance", 2),
            ("reuse count", 1),
            ("per reuse", 4),
            ("stride", 1),
        )
    },
    "intensity": SAMPLES,
    "allocation": 4,
    "loops": 3,
}
WIDTH = sum(GROUPS.values())


def describe(dag: Dag, store: Store) -> Floats:
    """[programs, WIDTH]: zero where a program lacks the statement; every x as sign(x) log2(|x| + 1)."""
    loops = store.loops
    accesses = [_Touched.of(dag, name, group, loops) for name, group in _by_buffer(store).items()]
    columns = [
        *_arithmetic(store),
        *(column for kind in ANNOTATIONS for column in _annotated(loops, kind)),
        np.zeros_like(loops.iterations),  # not a GPU: no threads but one in every direction
        *[np.ones_like(loops.iterations)] * (GPU - 1),
        *_of_buffers(store, accesses),
        *_intensity(store, accesses),
        *_allocation(dag, store),
        loops.iterations,
        (loops.extents > 1).sum(axis=0),
        store.unroll,
    ]
    described = np.stack(columns, axis=1).astype(np.float64)
    return np.where(store.present[:, None], np.sign(described) * np.log2(np.abs(described) + 1), 0.0)


def _by_buffer(store: Store) -> dict[str, list[Access]]:
    groups: dict[str, list[Access]] = {store.write.buffer: [store.write]}
    for read in store.reads:
        groups.setdefault(read.buffer, []).append(read)
    return groups


def _arithmetic(store: Store) -> list[Floats]:
    """How often every kind of operation is done."""
    counts = store.node.operations if store.computes else Operations()
    return [store.loops.iterations * count for count in counts]


def _annotated(loops: Loops, kind: LoopKind) -> list[Floats]:
    """How many loops are of a kind, their product, the innermost one's length, and where they stand: mixed,
    as soon as there are any. Parallel loops are always fused into one."""
    extents = np.where(loops.kinds == kind, loops.extents, 1.0)
    count = (extents > 1).sum(axis=0)
    product = extents.prod(axis=0)
    length = np.ones_like(product)
    for extent in extents:
        length = np.where(extent > 1, extent, length)
    if kind is LoopKind.PARALLEL:
        count, length = np.minimum(count, 1), product
    positions = [np.zeros_like(product) for _ in range(POSITIONS)]
    positions[NO_POSITION] = (count == 0).astype(np.float64)
    positions[MIXED_POSITION] = (count > 0).astype(np.float64)
    any_loop = count > 0
    return [
        count.astype(np.float64),
        np.where(any_loop, product, 0.0),
        np.where(any_loop, length, 0.0),
        *positions,
    ]


@dataclass(frozen=True)
class _Touched:
    """What the accesses of one buffer touch. `elements` [loops + 1, programs] are those touched inside every
    loop, `moves` [loops, programs] whether a loop changes what is touched, `strides` [loops, programs] by how
    many elements one of its steps moves the first access, `row_bytes` [programs] are contiguous."""

    buffer: Buffer
    elements: Floats
    moves: NDArray[np.bool_]
    strides: Floats
    row_bytes: Floats

    @classmethod
    def of(cls, dag: Dag, name: str, accesses: Sequence[Access], loops: Loops) -> _Touched:
        buffer = dag.buffer[name]
        covered = np.ceil(loops.inside).astype(np.int64)
        regions = [region(access, covered, buffer.shape) for access in accesses]
        dims = [np.maximum.reduce(same) for same in zip(*regions, strict=True)]
        ones = np.ones((len(loops.inside), loops.inside.shape[-1]))
        steps = loops.inside[:-1] / np.maximum(loops.inside[1:], 1.0)
        used = sorted(accesses[0].axes)
        flat = _flat_coefficients(accesses[0], buffer)
        moved = steps[:, used] > 1
        strides = sum(
            (
                np.where(moved[:, number], flat[axis] * loops.inside[1:, axis], 0.0)
                for number, axis in enumerate(used)
            ),
            start=np.zeros_like(loops.extents),
        )
        row = np.full(ones.shape[-1], 1.0)
        for dim, size in reversed(list(zip(dims, buffer.shape, strict=True))):
            row = np.where((row == 1.0) & (dim[0] == size), size * buffer.item_bytes, row)
        return cls(buffer, np.multiply.reduce([ones, *dims]), np.asarray(moved.any(axis=1)), strides, row)


def _flat_coefficients(access: Access, buffer: Buffer) -> dict[int, float]:
    """By how many elements a step along each axis moves an access."""
    found: dict[int, float] = {}
    stride = math.prod(buffer.shape)
    for index, size in zip(access.indices, buffer.shape, strict=True):
        stride //= size
        for axis, coefficient, divisor in index.terms:
            found[axis] = found.get(axis, 0.0) + stride * coefficient / divisor
    return found


def _of_buffers(store: Store, accesses: Sequence[_Touched]) -> list[Floats]:
    """The buffers that touch most cache lines, then most bytes; zeros for missing ones."""
    total = np.add.reduce([one.elements * one.buffer.item_bytes for one in accesses])
    described = np.array([_of_buffer(store, one, total) for one in accesses])
    width = described.shape[1]
    lines, size = _LINES, _BYTES
    order = np.lexsort((-described[:, size], -described[:, lines]), axis=0)
    ranked = np.take_along_axis(described, order[:, None, :], axis=0)[:BUFFERS]
    columns = list(ranked.reshape(-1, ranked.shape[-1]))
    return columns + [np.zeros(ranked.shape[-1])] * (BUFFERS * width - len(columns))


_BYTES, _LINES = 3, 5


def _of_buffer(store: Store, one: _Touched, total: Floats) -> list[Floats]:
    loops, item = store.loops, one.buffer.item_bytes
    is_written, is_read = one.buffer.name == store.write.buffer, _is_read(store, one.buffer.name)
    always, never = np.ones_like(loops.iterations), np.zeros_like(loops.iterations)
    access = [is_read and not is_written, is_written and not is_read, is_read and is_written]
    moved = loops.iterations * item
    unique = one.elements[0] * item
    shortest, innermost, still = _strides(loops, one)
    lines = np.maximum(loops.iterations / still * np.minimum(1.0, np.abs(shortest) * item / LINE_BYTES), 1.0)
    unique_lines = np.maximum(unique / np.minimum(LINE_BYTES, one.row_bytes), 1.0)
    count, distance, distance_bytes = _reuse(loops, one, total)
    reused = count > 0
    divisor = np.where(reused, count, NO_REUSE)
    return [
        *(always if holds else never for holds in access),
        moved,
        unique,
        lines,
        unique_lines,
        reused.astype(np.float64),
        never,
        (~reused).astype(np.float64),
        distance,
        distance_bytes,
        count,
        *(value / divisor for value in (moved, unique, lines, unique_lines)),
        innermost,
    ]


def _is_read(store: Store, buffer: str) -> bool:
    """A sum reads what it has stored."""
    accumulates = store.computes and bool(store.node.reduction) and buffer == store.write.buffer
    return accumulates or any(read.buffer == buffer for read in store.reads)


def _strides(loops: Loops, one: _Touched) -> tuple[Floats, Floats, Floats]:
    """[programs]: the stride of the innermost loop that moves the access, that of the innermost loop of all,
    and the iterations inside the first."""
    programs = loops.extents.shape[-1]
    shortest, innermost, still = np.zeros(programs), np.zeros(programs), np.ones(programs)
    found, met = np.zeros(programs, dtype=bool), np.zeros(programs, dtype=bool)
    for extent, stride in zip(loops.extents[::-1], one.strides[::-1], strict=True):
        is_loop = extent > 1
        innermost = np.where(is_loop & ~met, stride, innermost)
        met |= is_loop
        moves = is_loop & (stride != 0) & ~found
        shortest = np.where(moves, stride, shortest)
        still = np.where(is_loop & ~found & ~moves, still * extent, still)
        found |= moves
    return shortest, innermost, still


def _reuse(loops: Loops, one: _Touched, total: Floats) -> tuple[Floats, Floats, Floats]:
    """[programs]: the iterations of the innermost loop that reads the same again, and how many iterations and
    bytes later it does."""
    programs = loops.extents.shape[-1]
    count, distance, distance_bytes = (np.zeros(programs) for _ in range(3))
    inner = np.ones(programs)
    for number in range(len(loops.extents) - 1, -1, -1):
        extent = loops.extents[number]
        again = (extent > 1) & ~one.moves[number] & (count == 0)
        count = np.where(again, extent, count)
        distance = np.where(again, inner, distance)
        distance_bytes = np.where(again, total[number + 1], distance_bytes)
        inner = inner * extent
    return count, distance, distance_bytes


def _intensity(store: Store, accesses: Sequence[_Touched]) -> list[Floats]:
    """Operations per byte touched, at equal steps of the logarithm of the operations that loops of growing
    size do."""
    total = np.add.reduce([one.elements * one.buffer.item_bytes for one in accesses])
    operations = max(sum(store.node.operations), 1.0) if store.computes else 1.0
    done = np.cumprod(store.loops.extents[::-1], axis=0) * operations
    intensity = done / total[:-1][::-1]
    logs = np.log2(done)
    samples = []
    for number in range(1, SAMPLES + 1):
        wanted = logs[-1] * number / SAMPLES
        upper = np.minimum((logs < wanted).sum(axis=0), len(logs) - 1)
        lower = np.maximum(upper - 1, 0)
        low, high = (np.take_along_axis(logs, at[None], axis=0)[0] for at in (lower, upper))
        first, second = (np.take_along_axis(intensity, at[None], axis=0)[0] for at in (lower, upper))
        share = np.where(high > low, (wanted - low) / np.maximum(high - low, 1e-9), 1.0)
        samples.append(first + np.clip(share, 0.0, 1.0) * (second - first))
    return samples


def _allocation(dag: Dag, store: Store) -> list[Floats]:
    """Of the buffer that is stored, whole and allocated outside of all loops: bytes, elements, iterations
    around and inside."""
    buffer = dag.buffer[store.write.buffer]
    once = np.ones_like(store.loops.iterations)
    elements = math.prod(buffer.shape) * once
    return [elements * buffer.item_bytes, elements, once, store.loops.iterations]
