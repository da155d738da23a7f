"""What a tiled node moves between the levels of memory, and copies into the order of its loops.

Per cache level of capacity C the outermost loop inside which everything touched fits into C gives the bytes
that cross from the level below: the sum over accesses of footprint * visits.
"""

from __future__ import annotations

import numpy as np

from search.cost.machine import COPY_CYCLES, L1_SHARE, L2_SHARE, L3_SHARE, LINE_BYTES, MEMORY_STALL_BYTES
from search.dag import Access, Dag
from search.device import Device
from search.programs.nest import Floats, Nest, footprint_bytes, region, touched_elements
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.sketch import read_kind


def traffic_terms(population: Population, nest: Nest, device: Device) -> dict[str, Floats]:
    """Bytes that cross into each cache level, and the footprint at each boundary."""
    dag = population.sketch.dag
    accesses = [*nest.node.reads, nest.node.write]
    loops = nest.by_loop()
    levels = np.array([*(level for level, _ in nest.loops), nest.depth])
    sizes = [_footprint(population, nest, access, loops.inside, levels) for access in accesses]
    total = np.add.reduce(sizes)
    crossings = [size * loops.visits(access) for access, size in zip(accesses, sizes, strict=True)]
    stalls = [
        np.where(copied_at(population, nest, access) == 0, 1.0, _stalls(access, nest, dag, device))
        for access in accesses
    ]
    stalled = [crossing * stall for crossing, stall in zip(crossings, stalls, strict=True)]
    everything = np.add.reduce(stalled)
    # Where all of it fits into the last cache, only the weights come from memory.
    fits = total[0] <= L3_SHARE * device.l3_bytes
    is_cold = [dag.buffer[access.buffer].constant for access in accesses]
    cold = sum((s[0] for s, constant in zip(stalled, is_cold, strict=True) if constant), start=np.zeros(1))
    crossing = np.add.reduce(crossings)
    terms = {
        "l2_traffic": _crossing(total, crossing, L1_SHARE * device.l1_bytes),
        "l3_traffic": _crossing(total, crossing, L2_SHARE * device.l2_bytes),
        "memory_traffic": np.where(fits, cold, _crossing(total, everything, L3_SHARE * device.l3_bytes)),
    }
    for boundary in range(1, nest.depth):
        terms[f"footprint_{boundary}"] = total[np.searchsorted(levels, boundary)]
    return terms


def copied_at(population: Population, nest: Nest, access: Access) -> Ints:
    """[programs]: the boundary at which an operand is copied into the order of the loops: 0 for one packed
    ahead of time, one more than there are for one that is read as it lies."""
    never = nest.depth + 1
    variable = population.sketch.choice(nest.node.name, read_kind(access.buffer))
    if variable is None:
        return np.full(len(population), never)
    named = {"direct": never, "packed": 0}
    boundaries = [named[way] if way in named else int(way) for way in map(str, variable.options)]
    return np.array(boundaries)[population.column(nest.node.name, variable.kind)]


def _footprint(population: Population, nest: Nest, access: Access, inside: Ints, levels: Ints) -> Floats:
    """[boundaries, programs]: bytes of the lines touched where each axis covers `inside` [boundaries, axes,
    programs]; a copy has no lines but its own. `levels` [boundaries] are the tile levels that follow."""
    buffer = population.sketch.dag.buffer[access.buffer]
    lines = footprint_bytes(access, inside, buffer, LINE_BYTES)
    elements = touched_elements(access, inside, buffer.shape)
    copied = levels[:, None] >= copied_at(population, nest, access)
    return np.where(copied, np.maximum(elements * buffer.item_bytes, LINE_BYTES), lines)


def copy_cycles(population: Population, nest: Nest, device: Device) -> Floats:
    """What it costs to copy operands into the order of the loops, every time their part changes."""
    cycles = np.zeros(len(population))
    for access in dict.fromkeys(nest.node.reads):
        place = copied_at(population, nest, access)
        buffer = population.sketch.dag.buffer[access.buffer]
        elements = touched_elements(access, nest.inside, buffer.shape)
        trips = np.concatenate([np.ones((1, len(population))), nest.extents.prod(axis=1)])
        copies = np.cumprod(trips, axis=0)
        for level in range(0 if not buffer.constant else 1, nest.depth):
            here = elements[level] * copies[level] * buffer.item_bytes / device.vector_bytes * COPY_CYCLES
            cycles = cycles + np.where(place == level, here, 0.0)
    return cycles


def _stalls(access: Access, nest: Nest, dag: Dag, device: Device) -> Floats | float:
    """How much longer than streaming it takes to read the rows of a large buffer: the innermost reduction and
    spatial levels read them in runs, and every jump to the next run costs as much as MEMORY_STALL_BYTES
    would have taken."""
    buffer = dag.buffer[access.buffer]
    if buffer.num_bytes <= device.l2_bytes:
        return 1.0
    row = region(access, nest.inside[-3], buffer.shape)[-1]
    run = np.maximum(row * buffer.item_bytes, LINE_BYTES)
    return np.asarray(1.0 + np.where(row < buffer.shape[-1], MEMORY_STALL_BYTES / run, 0.0))


def _crossing(total: Floats, crossing: Floats, capacity: float) -> Floats:
    """Traffic at the outermost boundary whose regions fit; the innermost where none does."""
    fits = total <= capacity
    fits[-1] = True
    return np.asarray(np.take_along_axis(crossing, np.argmax(fits, axis=0)[None], axis=0)[0])
