"""The traffic of a tiled node between memory levels, and its copies of operands into loop order.

For a cache of capacity C, take the outermost loop inside which all touched lines fit into C. The cache then
loads the sum over accesses of footprint * visits. Rows that are a large power of two apart fall into the same
cache sets, and fit only where these have room for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from search.cost.cost_parameters import LINE_BYTES, PAGE_BYTES, CostParameters
from search.dag import Buffer, BufferAccess
from search.programs.compute_location import bytes_in_memory
from search.programs.nest import Floats, Nest, bytes_of_lines, elements_of, region, span, touched_elements
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
    sizes, taken, loads, stalled = [], [], [], []
    for access in accesses:
        buffer = dag.buffer[access.buffer]
        touched = region(access, loops.inside, buffer.shape)
        size = bytes_of_lines(touched, _item_bytes(population, nest, access), LINE_BYTES)
        evicted = size * _crowding(touched, buffer, parameters)
        stalls = _stalls(access, nest, buffer, parameters)
        copied = copied_at(population, nest, access)
        if copied is not None:
            # [boundaries, programs]: whether the access reads a copy in loop order there. Copies fill their
            # lines completely.
            is_copy = levels[:, None] >= copied
            copy = np.maximum(elements_of(touched) * buffer.item_bytes, LINE_BYTES)
            size, evicted = np.where(is_copy, copy, size), np.where(is_copy, copy, evicted)
            stalls = np.where(copied == 0, 1.0, stalls)
        load = size * loops.visits(access)
        sizes.append(size)
        taken.append(evicted)
        loads.append(load)
        stalled.append(load * stalls)
    total = reduce(np.add, sizes)
    # If everything fits into the L3 cache, only the weights come from memory.
    fits = total[0] <= parameters.l3_room
    is_cold = [dag.buffer[access.buffer].constant for access in accesses]
    cold = sum((s[0] for s, constant in zip(stalled, is_cold, strict=True) if constant), start=np.zeros(1))
    loaded, from_memory, crowded = reduce(np.add, loads), reduce(np.add, stalled), reduce(np.add, taken)
    terms = {
        "l2_traffic": _where_it_fits(loaded, crowded, parameters.l1_room),
        "l3_traffic": _where_it_fits(loaded, crowded, parameters.l2_room),
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


def _crowding(touched: Sequence[Floats], buffer: Buffer, parameters: CostParameters) -> Floats:
    """Return [boundaries, programs]: how many times larger a region is for a cache, because some of its lines
    evict one another.

    It is a power of the number of a cache's sets divided by the number of sets that the region uses. The
    address within PAGE_BYTES chooses the set. (Larger caches have more sets, but the physical address of a
    page is random.) For example, 128 rows of one line each, 4096 bytes apart, use one of 64 sets: the
    quotient is 64.
    """
    *rows, row = touched
    sets = np.minimum(np.ceil(row * buffer.item_bytes / LINE_BYTES), SETS)
    stride = buffer.item_bytes * math.prod(buffer.shape[-1:])
    for count, extent in zip(reversed(rows), reversed(buffer.shape[:-1]), strict=True):
        apart = PAGE_BYTES // math.gcd(stride, PAGE_BYTES)
        sets = np.minimum(sets * np.minimum(count, apart), SETS)
        stride *= extent
    larger = (SETS / np.maximum(np.arange(SETS + 1), 1)) ** parameters.factors.crowding
    return larger.take(sets.astype(np.int64), mode="clip")


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
