"""An analytic estimate of a program's run time, before anything was measured: a roofline over registers,
caches and cores. It orders the first candidates and is what the learned model starts from.

For a tiled node with vector width W, per iteration of its innermost reduction level:
    accumulators  A = product of the innermost spatial factors, the vectorized one counted in instructions
    loads         per access: its vectors, or its scalars where it is the same for all lanes
    cycles        max(A / 2, loads / 1.25, 4 * A / min(A * neighbours, 8)) + spills
and per cache level of capacity C: the outermost boundary whose regions fit into C gives the bytes that
cross from the level below, sum over accesses of footprint * visits. The node takes the longest of these
times, a part of the others, divided over the cores by how evenly the parallel chunks fall.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from search.dag import Access, Buffer, Dag, Term
from search.device import Device
from search.factors import Ints
from search.nest import Floats, Nest, footprint_bytes, region, vector_length
from search.program import Population
from search.sketch import Placement, Sketch, Stage

CYCLES_PER_S = 3.0e9
VECTOR_REGISTERS = 32
FMA_LATENCY = 4
ISSUE_WIDTH = 2
LINE_BYTES = 64
# Bytes a cycle that one core draws from each level; memory is shared by the cores.
L1_BYTES, L2_BYTES, L3_BYTES, MEMORY_BYTES = 128.0, 40.0, 16.0, 10.0
PARALLEL_LAUNCH_S = 3e-6
BRANCH_CYCLES = 4.0
OVERLAP = 0.5
# What a jump to another row costs, in bytes that would have streamed in meanwhile.
MEMORY_STALL_BYTES = 256.0
# An accumulator that lives in memory, and how many too many it takes until all of them do.
SPILL_CYCLES, SPILL_ALL = 1.5, 8
LOADS_PER_CYCLE = 1.25
REORDER_WINDOW = 512


@dataclass(frozen=True)
class Estimate:
    """Quantities of every program, each [programs]; `seconds` is the estimate itself."""

    seconds: Floats
    quantities: Mapping[str, Floats]


def estimate(population: Population, device: Device) -> Estimate:
    """Estimated seconds and the quantities behind them; the largest tiled node's stand for the program."""
    sketch = population.sketch
    seconds = np.full(len(population), _fixed_seconds(sketch, device))
    quantities: dict[str, Floats] = {}
    largest = _largest(sketch)
    for stage in sketch.tiled:
        terms = _tiled_terms(population, stage, device)
        seconds = seconds + terms["node_s"] + terms["epilogue_s"]
        if stage == largest:
            quantities = terms
    for stage in sketch.stages:
        if stage.placement is Placement.MOVABLE:
            moved = _moved_seconds(population, stage, device)
            seconds = seconds + moved
            quantities["moved_s"] = quantities.get("moved_s", 0.0) + moved
    return Estimate(seconds, quantities)


def _largest(sketch: Sketch) -> Stage | None:
    def work(stage: Stage) -> float:
        node = sketch.dag.node[stage.node]
        return max(node.flops, 1.0) * node.iterations

    return max(sketch.tiled, key=work, default=None)


def _tiled_terms(population: Population, stage: Stage, device: Device) -> dict[str, Floats]:
    nest = Nest.of(population, stage)
    dag = population.sketch.dag
    chunks = nest.trips(0).astype(np.float64)
    balance = np.minimum(chunks, device.cores) / device.cores
    balance = np.where(
        chunks > device.cores, chunks / (np.ceil(chunks / device.cores) * device.cores), balance
    )
    terms = _register_terms(nest, dag, device)
    traffic = _traffic_terms(nest, dag, device)
    compute_s = terms["cycles"] / CYCLES_PER_S / device.cores / balance
    memory_s = [
        traffic[name] / rate / CYCLES_PER_S / share / balance
        for name, rate, share in (
            ("l2_traffic", L2_BYTES, device.cores),
            ("l3_traffic", L3_BYTES, device.cores),
            ("memory_traffic", MEMORY_BYTES, 1),
        )
    ]
    every = [compute_s, *memory_s]
    longest = np.maximum.reduce(every)
    node_s = longest + OVERLAP * (np.sum(every, axis=0) - longest) + PARALLEL_LAUNCH_S
    return {
        **terms,
        **traffic,
        **_shape_terms(nest),
        "chunks": chunks,
        "balance": balance,
        "compute_s": compute_s,
        "node_s": node_s,
        "epilogue_s": _epilogue_seconds(nest, dag, device),
        "epilogue_level": np.full(len(chunks), float(stage.epilogue_level)),
        "unroll": population.column(stage.node, "unroll").astype(np.float64),
    }


def _register_terms(nest: Nest, dag: Dag, device: Device) -> dict[str, Floats]:
    """What one step of the innermost reduction level costs in registers and issue slots."""
    node = nest.node
    tile = nest.tile
    item = dag.buffer[node.write.buffer].item_bytes
    lanes = max(device.vector_bytes // item, 1)
    axis = node.vector_axis
    width = tile[axis] if axis is not None else np.ones_like(tile[0])
    instructions = _vector_instructions(width, lanes)
    elements = tile.prod(axis=0, dtype=np.float64)
    accumulators = elements / width * instructions
    loads = np.zeros_like(elements)
    for read in node.reads:
        loads = loads + _loads(read, tile, axis, lanes)
    inner_reduction = nest.trips(nest.depth - 2).astype(np.float64)
    # Short reductions of neighbouring tiles run side by side, as far as the reorder buffer reaches.
    neighbours = REORDER_WINDOW / (inner_reduction * (accumulators + instructions))
    chains = accumulators * np.maximum(neighbours, 1.0)
    chained = accumulators * FMA_LATENCY / np.minimum(chains, ISSUE_WIDTH * FMA_LATENCY)
    step = np.maximum.reduce([accumulators / ISSUE_WIDTH, loads / LOADS_PER_CYCLE, chained])
    missing = accumulators + np.minimum(instructions, 4) - VECTOR_REGISTERS
    spills = SPILL_CYCLES * accumulators * np.clip(missing / SPILL_ALL, 0.0, 1.0)
    # Accumulators are loaded and stored once for every run through the innermost reduction level.
    step = step + spills + 2 * accumulators / ISSUE_WIDTH / inner_reduction
    steps = node.iterations / elements
    return {
        "vector_width": width.astype(np.float64),
        "vector_waste": instructions * lanes / width,
        "accumulators": accumulators,
        "loads_per_fma": loads / accumulators,
        "spills": spills,
        "inner_reduction": inner_reduction,
        "cycles": steps * step,
    }


def _vector_instructions(width: Ints, lanes: int) -> Floats:
    """Instructions for one row of the tile, `width` elements in vectors of a power of two."""
    length = vector_length(width)
    return np.asarray(width / length * np.ceil(length / lanes))


def _loads(read: Access, tile: Ints, axis: int | None, lanes: int) -> Floats:
    """Load instructions of one access per innermost step: vectors, or scalars for all lanes, or a gather."""
    used = read.axes
    rows = tile[[a for a in used if a != axis]].prod(axis=0, dtype=np.float64)
    if axis not in used or axis is None:
        return rows
    *outer, last = read.indices
    contiguous = Term(axis, 1) in last.terms and not any(axis in index.axes for index in outer)
    return rows * (_vector_instructions(tile[axis], lanes) if contiguous else 2.0 * tile[axis])


def _traffic_terms(nest: Nest, dag: Dag, device: Device) -> dict[str, Floats]:
    """Bytes that cross into each cache level, and the footprint at each boundary."""
    accesses = [*nest.node.reads, nest.node.write]
    sizes = [footprint_bytes(a, nest.inside, dag.buffer[a.buffer], LINE_BYTES) for a in accesses]
    total = np.add.reduce(sizes)
    crossings = [size * nest.visits(access) for access, size in zip(accesses, sizes, strict=True)]
    stalls = [_stalls(access, nest, dag.buffer[access.buffer], device) for access in accesses]
    stalled = np.add.reduce([c * stall for c, stall in zip(crossings, stalls, strict=True)])
    crossing = np.add.reduce(crossings)
    terms = {
        "l2_traffic": _crossing(total, crossing, 0.8 * device.l1_bytes),
        "l3_traffic": _crossing(total, crossing, 0.7 * device.l2_bytes),
        "memory_traffic": _crossing(total, stalled, 0.6 * device.l3_bytes),
    }
    for boundary in range(1, nest.depth):
        terms[f"footprint_{boundary}"] = total[boundary]
    return terms


def _stalls(access: Access, nest: Nest, buffer: Buffer, device: Device) -> Floats | float:
    """How much longer than streaming it takes to read the rows of a large buffer: the innermost reduction and
    spatial levels read them in runs, and every jump to the next run costs as much as MEMORY_STALL_BYTES
    would have taken."""
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


def _shape_terms(nest: Nest) -> dict[str, Floats]:
    """The trips of every level and the innermost factors, outermost first."""
    return {f"trips_{level}": nest.trips(level).astype(np.float64) for level in range(nest.depth)}


def _epilogue_seconds(nest: Nest, dag: Dag, device: Device) -> Floats:
    """Writing the result and reading it again, from the cache that holds the tile in between."""
    buffer = dag.buffer[nest.node.write.buffer]
    level = nest.stage.epilogue_level
    tile = footprint_bytes(nest.node.write, nest.inside[level], buffer, LINE_BYTES)
    rate = np.select(
        [tile <= device.l1_bytes / 2, tile <= device.l2_bytes / 2, tile <= device.l3_bytes / 2],
        [L1_BYTES, L2_BYTES, L3_BYTES],
        MEMORY_BYTES / device.cores,
    )
    launch = 0.0 if level else PARALLEL_LAUNCH_S
    return np.asarray(2 * buffer.num_bytes / rate / CYCLES_PER_S / device.cores + launch)


def _moved_seconds(population: Population, stage: Stage, device: Device) -> Floats:
    """A movable node's own cost at each of its possible locations."""
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    host = sketch.host(stage)
    assert host is not None
    nest = Nest.of(population, host)
    buffer = sketch.dag.buffer[node.write.buffer]
    reads = [read for read in nest.node.reads if read.buffer == buffer.name]
    lanes = max(device.vector_bytes // buffer.item_bytes, 1)
    elements = math.prod(buffer.shape)
    inlined = np.full(len(population), BRANCH_CYCLES * nest.node.iterations / lanes)
    rate = L2_BYTES if buffer.num_bytes * 2 < device.l2_bytes * device.cores else L3_BYTES
    at_root = np.full(len(population), 2 * elements * buffer.item_bytes / rate)
    costs = [inlined, at_root + PARALLEL_LAUNCH_S * CYCLES_PER_S * device.cores]
    for level in range(1, sketch.deepest_location(stage) + 1):
        inner = nest.inside[level]
        tile = sum(np.multiply.reduce(region(r, inner, buffer.shape), dtype=np.float64) for r in reads)
        visits = np.prod([nest.trips(i) for i in range(level)], axis=0, dtype=np.float64)
        costs.append(tile * visits * (BRANCH_CYCLES / lanes + 2 * buffer.item_bytes / L1_BYTES))
    chosen = np.choose(population.column(stage.node, "location"), costs)
    return np.asarray(chosen / CYCLES_PER_S / device.cores)


def _fixed_seconds(sketch: Sketch, device: Device) -> float:
    """Nodes in nests of their own cost the same in every program: one pass over their data."""
    total = 0.0
    for stage in sketch.stages:
        if stage.placement is not Placement.NEST:
            continue
        node = sketch.dag.node[stage.node]
        touched = sum(sketch.dag.buffer[a.buffer].num_bytes for a in (*node.reads, node.write))
        work = node.iterations * max(node.flops, 1.0) / (device.vector_bytes / 4)
        total += PARALLEL_LAUNCH_S + max(touched / L3_BYTES, work) / CYCLES_PER_S / device.cores
    return total
