"""The traffic of a tiled node between memory levels, and its copies of operands into loop order.

For a cache of capacity C, take the outermost loop inside which all touched lines fit into C. The cache then
loads the sum over accesses of footprint * visits. Rows that are a large power of two apart fall into the same
cache sets, and fit only where these have room for them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from search.cost.cost_parameters import LINE_BYTES, PAGE_BYTES, CostParameters
from search.dag import Access, Dag
from search.programs.nest import Floats, Nest, footprint_bytes, region, touched_elements
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.variables import read_kind


def traffic_terms(population: Population, nest: Nest, parameters: CostParameters) -> dict[str, Floats]:
    """Return the bytes that are loaded into each level of memory, and the footprint at each boundary."""
    dag = population.sketch.dag
    accesses = [*nest.node.reads, nest.node.write]
    loops = nest.by_loop()
    levels = np.array([*(level for level, _ in nest.loops), nest.depth])
    # [boundaries, programs]: whether an access reads a copy in loop order there.
    copied = [levels[:, None] >= copied_at(population, nest, access) for access in accesses]
    sizes = [
        _footprint(population, access, loops.inside, is_copy)
        for access, is_copy in zip(accesses, copied, strict=True)
    ]
    total = np.add.reduce(sizes)
    taken = np.zeros_like(total)
    for access, size, is_copy in zip(accesses, sizes, copied, strict=True):
        crowding = _crowding(access, loops.inside, dag) ** parameters.factors.crowding
        taken = taken + size * np.where(is_copy, 1.0, crowding)
    loads = [size * loops.visits(access) for access, size in zip(accesses, sizes, strict=True)]
    stalls = [
        np.where(copied_at(population, nest, access) == 0, 1.0, _stalls(access, nest, dag, parameters))
        for access in accesses
    ]
    stalled = [load * stall for load, stall in zip(loads, stalls, strict=True)]
    # If everything fits into the L3 cache, only the weights come from memory.
    fits = total[0] <= parameters.l3_room
    is_cold = [dag.buffer[access.buffer].constant for access in accesses]
    cold = sum((s[0] for s, constant in zip(stalled, is_cold, strict=True) if constant), start=np.zeros(1))
    loaded, from_memory = np.add.reduce(loads), np.add.reduce(stalled)
    terms = {
        "l2_traffic": _where_it_fits(loaded, taken, parameters.l1_room),
        "l3_traffic": _where_it_fits(loaded, taken, parameters.l2_room),
        "memory_traffic": np.where(fits, cold, _where_it_fits(from_memory, total, parameters.l3_room)),
    }
    for boundary in range(1, nest.depth):
        terms[f"footprint_{boundary}"] = total[np.searchsorted(levels, boundary)]
    return terms


def copied_at(population: Population, nest: Nest, access: Access) -> Ints:
    """Return [programs]: the boundary at which an operand is copied into the order of the loops.

    It is 0 if the operand is packed ahead of time, and one more than there are if it isn't copied.
    """
    never = nest.depth + 1
    variable = population.sketch.choice(nest.node.name, read_kind(access.buffer))
    if variable is None:
        return np.full(len(population), never)
    named = {"direct": never, "packed": 0}
    boundaries = [named[way] if way in named else int(way) for way in map(str, variable.options)]
    return np.array(boundaries)[population.column(nest.node.name, variable.kind)]


def _footprint(population: Population, access: Access, inside: Ints, is_copy: NDArray[np.bool_]) -> Floats:
    """Return [boundaries, programs]: the bytes of the lines that an access touches.

    Each axis covers `inside` [boundaries, axes, programs]. Copies fill their lines completely.
    """
    buffer = population.sketch.dag.buffer[access.buffer]
    lines = footprint_bytes(access, inside, buffer, LINE_BYTES)
    elements = touched_elements(access, inside, buffer.shape)
    return np.where(is_copy, np.maximum(elements * buffer.item_bytes, LINE_BYTES), lines)


def _crowding(access: Access, inside: Ints, dag: Dag) -> Floats:
    """Return [boundaries, programs]: the number of a cache's sets divided by the number of sets that a region
    uses.

    The address within PAGE_BYTES chooses the set. (Larger caches have more sets, but the physical address of
    a page is random.) For example, 128 rows of one line each, 4096 bytes apart, use one of 64 sets: the
    result is 64.
    """
    buffer = dag.buffer[access.buffer]
    *rows, row = region(access, inside, buffer.shape) or [np.ones_like(inside[..., 0, :])]
    covered = np.minimum(np.ceil(row * buffer.item_bytes / LINE_BYTES) * LINE_BYTES, PAGE_BYTES)
    stride = buffer.item_bytes * math.prod(buffer.shape[-1:])
    for count, extent in zip(reversed(rows), reversed(buffer.shape[:-1]), strict=True):
        apart = PAGE_BYTES // math.gcd(stride, PAGE_BYTES)
        covered = np.minimum(covered * np.minimum(count, apart), PAGE_BYTES)
        stride *= extent
    return np.asarray(PAGE_BYTES / covered)


def copy_cycles(population: Population, nest: Nest, parameters: CostParameters) -> Floats:
    """Return [programs]: the cycles of copying operands into loop order whenever the touched part changes."""
    cycles = np.zeros(len(population))
    for access in dict.fromkeys(nest.node.reads):
        place = copied_at(population, nest, access)
        buffer = population.sketch.dag.buffer[access.buffer]
        elements = touched_elements(access, nest.inside, buffer.shape)
        trips = np.concatenate([np.ones((1, len(population))), nest.extents.prod(axis=1)])
        copies = np.cumprod(trips, axis=0)
        for level in range(0 if not buffer.constant else 1, nest.depth):
            here = (
                elements[level]
                * copies[level]
                * buffer.item_bytes
                / parameters.device.vector_bytes
                * parameters.factors.copy_cycles
            )
            cycles = cycles + np.where(place == level, here, 0.0)
    return cycles


def _stalls(access: Access, nest: Nest, dag: Dag, parameters: CostParameters) -> Floats | float:
    """Return [programs]: the time to read the rows of a large buffer, relative to streaming them.

    The innermost reduction and spatial levels read the rows in runs, and every jump to the next run costs as
    much as streaming `stall_bytes`.
    """
    buffer = dag.buffer[access.buffer]
    if buffer.num_bytes <= parameters.device.l2_bytes:
        return 1.0
    row = region(access, nest.inside[-3], buffer.shape)[-1]
    run = np.maximum(row * buffer.item_bytes, LINE_BYTES)
    return np.asarray(1.0 + np.where(row < buffer.shape[-1], parameters.factors.stall_bytes / run, 0.0))


def _where_it_fits(traffic: Floats, footprint: Floats, capacity: float) -> Floats:
    """Return the traffic at the outermost boundary whose footprint fits; at the innermost one if none
    does."""
    fits = footprint <= capacity
    fits[-1] = True
    return np.asarray(np.take_along_axis(traffic, np.argmax(fits, axis=0)[None], axis=0)[0])
