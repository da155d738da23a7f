"""The traffic of a tiled node between memory levels, and its copies of operands into loop order.

For a cache of capacity C, take the outermost loop inside which all touched lines fit into C. The cache then
loads the sum over accesses of footprint * visits. In the L1 cache, rows that are a large power of two apart
fall into the same sets. They stay there inside the outermost loop for which these sets have room.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from search.cost.cost_parameters import LINE_BYTES, PAGE_BYTES, CostParameters
from search.dag import Buffer, BufferAccess, Index
from search.programs.compute_location import bytes_in_memory, is_inline_value, location_depth
from search.programs.nest import (
    Counts,
    Floats,
    Nest,
    elements_of,
    region,
    span,
    touched_elements,
)
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.variables import read_kind

# The sets of the smallest cache: its lines at distances of a page share one.
SETS = PAGE_BYTES // LINE_BYTES


def traffic_terms(population: Population, nest: Nest, parameters: CostParameters) -> dict[str, Floats]:
    """Return the bytes that are loaded into each level of memory, and the footprint at each boundary."""
    dag = population.sketch.dag
    accesses = [*nest.node.reads, nest.node.write]
    loops = nest.by_loop()
    levels = np.array([*(level for level, _ in nest.loops), nest.depth])
    sizes, wasted, loads, stalled = [], [], [], []
    for access in accesses:
        buffer = dag.buffer[access.buffer]
        item_bytes = _item_bytes(population, nest, access)
        touched = region(access, loops.inside, buffer.shape)
        steps = [_step(index, loops.inside) for index in access.indices[:-1]]
        lines = _lines(touched, steps, item_bytes)
        size = elements_of(lines) * LINE_BYTES
        unused = _unused(lines, steps, _shape_in_memory(population, nest, access), item_bytes)
        stalls = _stalls(access, nest, buffer, parameters)
        copied = copied_at(population, nest, access)
        if copied is not None:
            # [boundaries, programs]: whether the access reads a copy in loop order there. Copies fill their
            # lines completely.
            is_copy = levels[:, None] >= copied
            copy = np.maximum(elements_of(touched) * buffer.item_bytes, LINE_BYTES)
            size, unused = np.where(is_copy, copy, size), np.where(is_copy, 0.0, unused)
            stalls = np.where(copied == 0, 1.0, stalls)
        load = size * loops.visits(access)
        sizes.append(size)
        wasted.append(unused)
        loads.append(load)
        stalled.append(load * stalls)
    total = reduce(np.add, sizes)
    # If everything fits into the L3 cache, only the weights come from memory.
    fits = total[0] <= parameters.l3_room
    is_cold = [dag.buffer[access.buffer].constant for access in accesses]
    cold = sum((s[0] for s, constant in zip(stalled, is_cold, strict=True) if constant), start=np.zeros(1))
    loaded, from_memory = reduce(np.add, loads), reduce(np.add, stalled)
    # A region stays in the L1 cache if all lines fit, and if its own fullest sets don't overflow.
    needed = [np.maximum(total, (total + unused) * parameters.factors.l1_share) for unused in wasted]
    evicted = [
        _where_it_fits(load, size, parameters.l1_room) for load, size in zip(loads, needed, strict=True)
    ]
    terms = {
        "l2_traffic": reduce(np.add, evicted),
        "l3_traffic": _where_it_fits(loaded, total, parameters.l2_room),
        "memory_traffic": np.where(fits, cold, _where_it_fits(from_memory, total, parameters.l3_room)),
    }
    for boundary in range(1, nest.depth):
        terms[f"footprint_{boundary}"] = total[np.searchsorted(levels, boundary)]
    return terms


def _item_bytes(population: Population, nest: Nest, access: BufferAccess) -> Ints:
    """Return [programs]: the bytes of an element that the loops move. Sums stay in a small buffer until the
    epilogue stores its result."""
    dag, epilogue = population.sketch.dag, nest.stage.epilogue
    if access is nest.node.write and epilogue is not None and nest.stage.epilogue_level:
        result = dag.buffer[dag.node[epilogue].write.buffer]
        return np.full(len(population), result.item_bytes)
    return bytes_in_memory(population, access.buffer)


def copied_at(population: Population, nest: Nest, access: BufferAccess) -> Ints | None:
    """Return [programs]: the boundary at which an operand is copied into the order of the loops.

    It is 0 if the operand is packed ahead of time, and one more than there are if it isn't copied. Return
    None if no program copies it.
    """
    variable = population.sketch.choice(nest.node.name, read_kind(access.buffer))
    if variable is None:
        return None
    named = {"direct": nest.depth + 1, "packed": 0}
    boundaries = [named[way] if way in named else int(way) for way in map(str, variable.options)]
    return np.array(boundaries)[population.column(nest.node.name, variable.kind)]


def _shape_in_memory(population: Population, nest: Nest, access: BufferAccess) -> Sequence[Ints | int]:
    """Return each dimension of a buffer in memory, [programs] or one for all.

    A producer inside the nest's loops stores a part, and so does the nest for a fused epilogue. Elements that
    are computed inline lie in their operand.
    """
    dag = population.sketch.dag
    shape = dag.buffer[access.buffer].shape
    if access is nest.node.write:
        return [part[nest.stage.epilogue_level] for part in region(access, nest.inside, shape)]
    producer = dag.producer.get(access.buffer)
    if producer is None:
        return shape
    whole: Sequence[Ints | int] = shape
    if population.sketch.compute_at.get(producer.name) is nest.node:
        depth = location_depth(population, producer.name)
        whole = [part[depth, np.arange(len(depth))] for part in region(access, nest.inside, shape)]
    operand = dag.buffer[producer.reads[0].buffer].shape if producer.reads else ()
    if len(operand) == len(shape):
        is_inline = is_inline_value(population, access.buffer)
        whole = [np.where(is_inline, own, part) for own, part in zip(operand, whole, strict=True)]
    return whole


def _lines(touched: Sequence[Counts], steps: Sequence[Ints | int], item_bytes: Ints) -> list[Counts]:
    """Return [boundaries, programs] for each dimension: the rows that are read, and last the lines of a row.

    `steps` are the distances of the rows that are read.
    """
    *rows, row = touched
    read = [
        extent if isinstance(step, int) else np.floor((extent - 1) / step) + 1
        for extent, step in zip(rows, steps, strict=True)
    ]
    return [*read, np.ceil(row * item_bytes / LINE_BYTES)]


def _unused(
    lines: Sequence[Counts], steps: Sequence[Ints | int], shape: Sequence[Ints | int], item_bytes: Ints
) -> Floats:
    """Return [boundaries, programs]: the bytes that other sets have left when the fullest sets are full.

    The address within PAGE_BYTES chooses a line's set in the L1 cache. Larger caches have more sets. There,
    the physical address of a page counts, which is random. `shape` is the buffer's in memory.

    For example, 8 rows of one line each are 4096 bytes apart. They fill one of 64 sets of 8 lines, so 504
    lines are unused.
    """
    number, stride = lines[-1], item_bytes
    sets = np.minimum(number, SETS)
    outer = zip(lines[-2::-1], reversed(steps), shape[-2::-1], shape[:0:-1], strict=True)
    for rows, step, extent, row in outer:
        stride = stride * row
        held = np.minimum(rows, extent)
        apart = PAGE_BYTES // np.gcd(stride * step, PAGE_BYTES)
        number = number * held
        sets = np.minimum(sets * np.minimum(held, apart), SETS)
    return np.asarray(number * (SETS / sets - 1) * LINE_BYTES)


def _step(index: Index, inner: Counts) -> Ints | int:
    """Return [boundaries, programs]: the distance of the elements that an index touches. Return 1 if all are
    adjacent. A convolution of 1x1 pixels with a stride skips rows.
    """
    steps = {abs(term.coefficient) for term in index.terms}
    if not index.affine or max(steps, default=1) == 1 or any(term.divisor != 1 for term in index.terms):
        return 1
    moving = [np.where(inner[..., term.axis, :] > 1, abs(term.coefficient), 0) for term in index.terms]
    return np.asarray(np.maximum(reduce(np.gcd, moving), 1))


def copy_cycles(population: Population, nest: Nest, parameters: CostParameters) -> Floats:
    """Return [programs]: the cycles of copying operands into loop order whenever the touched part changes."""
    cycles = np.zeros(len(population))
    trips = np.concatenate([np.ones((1, len(population))), nest.extents.prod(axis=1)])
    copies = np.cumprod(trips, axis=0)
    for access in nest.node.distinct_reads:
        variable = population.sketch.choice(nest.node.name, read_kind(access.buffer))
        if variable is None:
            continue
        buffer = population.sketch.dag.buffer[access.buffer]
        for option, way in enumerate(map(str, variable.options)):
            if way in ("direct", "packed"):
                continue
            level, rows = int(way), np.flatnonzero(population.column(nest.node.name, variable.kind) == option)
            elements = touched_elements(access, nest.inside[level][:, rows], buffer.shape)
            moved = elements * copies[level, rows] * buffer.item_bytes
            cycles[rows] += moved / parameters.device.vector_bytes * parameters.factors.copy_cycles
    return cycles


def _stalls(access: BufferAccess, nest: Nest, buffer: Buffer, parameters: CostParameters) -> Floats | float:
    """Return [programs]: the time to read the rows of a large buffer, relative to streaming them.

    The innermost reduction and spatial levels read the rows in runs, and every jump to the next run costs as
    much as streaming `stall_bytes`.
    """
    if buffer.num_bytes <= parameters.device.l2_bytes:
        return 1.0
    row = span(access.indices[-1], nest.inside[-3], buffer.shape[-1])
    run = np.maximum(row * buffer.item_bytes, LINE_BYTES)
    return np.asarray(1.0 + np.where(row < buffer.shape[-1], parameters.factors.stall_bytes / run, 0.0))


def _where_it_fits(traffic: Floats, footprint: Floats, capacity: float) -> Floats:
    """Return the traffic at the outermost boundary whose footprint fits; at the innermost one if none
    does."""
    fits = footprint <= capacity
    fits[-1] = True
    return np.asarray(traffic[np.argmax(fits, axis=0), np.arange(traffic.shape[1])])
