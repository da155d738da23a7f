"""The analytic estimate of a tiled node: a roofline over registers, caches and cores.

One step of the innermost reduction level takes, in cycles (constants in search.cost.machine),
    max(A / issue, L / loads, A * latency / min(A * n, issue * latency)) + spills + 2 A / issue / K + loop / U
with
    A  accumulators: the innermost spatial factors, the vectorized one counted in instructions
    L  loads of every access: its vectors, or its scalars where it is the same for all lanes, each with what
       it takes to compute a value that was inlined; none where what is read stays in registers
    n  = reorder window / (steps of a chain * (A + vectors of a row)): tiles side by side that run at once
    K  steps until the accumulators are stored, U  steps that are code of their own
    spills: of the accumulators that no register holds
There are as many steps as iterations, less those that add known zeros (search.cost.sparsity). Per cache
level of capacity C the outermost loop inside which everything touched fits into C gives the bytes that
cross from the level below: the sum over accesses of footprint * visits. The node takes the longest of
computing and these transfers and a part of the others, divided over the cores by how evenly the parallel
chunks fall.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search.cost.machine import (
    COPY_CYCLES,
    CYCLES_PER_S,
    FMA_LATENCY,
    INLINE_CYCLES,
    ISSUE_WIDTH,
    L1_SHARE,
    L2_BYTES,
    L2_SHARE,
    L3_BYTES,
    L3_SHARE,
    LINE_BYTES,
    LOADS_PER_CYCLE,
    LOOP_CYCLES,
    MEMORY_BYTES,
    MEMORY_STALL_BYTES,
    OVERLAP,
    PARALLEL_LAUNCH_S,
    REORDER_WINDOW,
    SPILL_ALL,
    SPILL_CYCLES,
    VECTOR_REGISTERS,
    balance_of,
    rate_of,
)
from search.cost.sparsity import remaining_share
from search.dag import Access, Dag, Term
from search.device import Device
from search.programs.code_size import unrolled_steps
from search.programs.moves import is_inlined
from search.programs.nest import Floats, Nest, footprint_bytes, region, vector_instructions
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.intrinsics import BY_NAME
from search.sketches.predicates import is_permutation
from search.sketches.sketch import read_kind
from search.sketches.stage import Placement, Stage

# Structures with two reduction levels, such as SSRSRS, have a spatial one between them.
MERGING_DEPTH = 6
# Reductions of so few steps are unrolled by the compiler.
FLAT_STEPS = 4


def tile_terms(population: Population, stage: Stage, device: Device) -> dict[str, Floats]:
    """The quantities of one tiled node, each [programs]; `node_s` and `epilogue_s` are its seconds."""
    nest = Nest.of(population, stage)
    dag = population.sketch.dag
    chunks = nest.trips(0).astype(np.float64)
    balance = balance_of(chunks, device.cores)
    terms = _register_terms(population, nest, device)
    traffic = _traffic_terms(population, nest, device)
    copy_cycles = _copy_cycles(population, nest, device)
    compute_s = (terms["cycles"] + copy_cycles) / CYCLES_PER_S / device.cores / balance
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
        "copy_cycles": copy_cycles,
        "chunks": chunks,
        "balance": balance,
        "compute_s": compute_s,
        "node_s": node_s,
        "epilogue_s": _epilogue_seconds(nest, dag, device),
        "epilogue_level": np.full(len(chunks), float(stage.epilogue_level)),
        "unroll": population.column(stage.node, "unroll").astype(np.float64),
    }


def _register_terms(population: Population, nest: Nest, device: Device) -> dict[str, Floats]:
    """What one step of the innermost reduction level costs in registers and issue slots."""
    body = _Body.of(population, nest, device)
    loads = _loads_of_all(population, nest, body)
    # Short reductions of neighbouring tiles run side by side, as far as the reorder buffer reaches.
    neighbours = REORDER_WINDOW / (body.chain * (body.accumulators + body.instructions))
    chains = body.accumulators * np.maximum(neighbours, 1.0)
    chained = body.accumulators * FMA_LATENCY / np.minimum(chains, ISSUE_WIDTH * FMA_LATENCY)
    step = np.maximum.reduce([body.accumulators / ISSUE_WIDTH, loads / LOADS_PER_CYCLE, chained])
    missing = body.accumulators + np.minimum(body.instructions, 4) - VECTOR_REGISTERS
    spills = SPILL_CYCLES * body.accumulators * np.clip(missing / SPILL_ALL, 0.0, 1.0)
    # Accumulators are loaded and stored once for every run through the reduction.
    step = step + spills + 2 * body.accumulators / ISSUE_WIDTH / body.kept + LOOP_CYCLES / body.unrolled
    # A partial last tile takes as long as a full one.
    steps = nest.inside[0].prod(axis=0, dtype=np.float64) / body.tile.prod(axis=0, dtype=np.float64)
    steps = steps / body.depth * remaining_share(nest, body.unrolled)
    return {
        "vector_width": body.width.astype(np.float64),
        "vector_waste": body.instructions * body.lanes / body.width,
        "accumulators": body.accumulators,
        "loads_per_fma": loads / body.accumulators,
        "spills": spills,
        "inner_reduction": body.kept,
        "cycles": steps * step,
    }


@dataclass(frozen=True)
class _Body:
    """The innermost code of a tiled node.

    `tile` [axes, programs]; `width` elements of a row take `instructions`, of `lanes` each at most; `chain`
    steps follow one another on the same accumulators, `unrolled` of them without a loop, and after `kept`
    steps the accumulators are stored; an intrinsic takes `depth` steps at once.
    """

    tile: Ints
    width: Ints
    lanes: int
    instructions: Floats
    accumulators: Floats
    chain: Floats
    kept: Floats
    unrolled: Ints
    depth: int

    @classmethod
    def of(cls, population: Population, nest: Nest, device: Device) -> _Body:
        lanes = device.lanes(population.sketch.dag.buffer[nest.node.write.buffer])
        axis = nest.node.vector_axis
        unrolled = unrolled_steps(population, nest)
        tile = nest.tile.copy()
        if axis is not None:
            tile[axis] *= _vectorized_by_compiler(nest, axis, unrolled)
        width = tile[axis] if axis is not None else np.ones_like(tile[0])
        instructions = vector_instructions(width, lanes).astype(np.float64)
        accumulators = tile.prod(axis=0) / width * instructions
        level = nest.depth - 2
        depth = BY_NAME[nest.stage.intrinsic].depth if nest.stage.intrinsic else 1
        steps = nest.trips(level) / depth
        between, outer = _loops_between(nest)
        # Without loops between the reduction levels the accumulators stay in registers for both.
        is_unrolled = unrolled >= nest.trips(level) * between
        stays = (between == 1) | (is_unrolled & (accumulators * between < VECTOR_REGISTERS))
        return cls(
            tile=tile,
            width=width,
            lanes=lanes,
            instructions=instructions,
            accumulators=accumulators,
            chain=steps * np.where(between == 1, outer, 1),
            kept=steps * np.where(stays, outer, 1),
            unrolled=np.minimum(unrolled, nest.trips(level)),
            depth=depth,
        )


def _loops_between(nest: Nest) -> tuple[Ints, Ints]:
    """[programs]: iterations of the loops between the two reduction levels, and of the outer one of those."""
    if nest.depth < MERGING_DEPTH:
        ones = np.ones_like(nest.tile[0])
        return ones, ones
    return nest.trips(nest.depth - 3), nest.trips(nest.depth - 4)


def _vectorized_by_compiler(nest: Nest, axis: int, unrolled: Ints) -> Ints:
    """[programs]: iterations of the loop around a reduction without loops, which become vectors where the
    tile itself has none."""
    if nest.depth < MERGING_DEPTH:
        return np.ones_like(nest.tile[0])
    between = nest.extents[-3]
    is_inner = between[axis + 1 :].prod(axis=0) == 1
    is_flat = nest.trips(nest.depth - 2) <= np.maximum(unrolled, FLAT_STEPS)
    return np.where((nest.tile.prod(axis=0) == 1) & is_inner & is_flat, np.minimum(between[axis], 16), 1)


def _loads_of_all(population: Population, nest: Nest, body: _Body) -> Floats:
    """[programs]: load instructions of one step."""
    node, dag = nest.node, population.sketch.dag
    loads = np.zeros(len(population))
    for read in node.reads:
        # Intrinsics read nothing but vectors, whatever order the operand lies in at first.
        is_intrinsic = bool(nest.stage.intrinsic)
        vectors = loads_of(read, body.tile, node.vector_axis, body.lanes, is_arranged=is_intrinsic)
        if is_permutation(dag, node, read):
            arranged = _copied_at(population, nest, read) <= nest.depth
            in_order = loads_of(read, body.tile, node.vector_axis, body.lanes, is_arranged=True)
            vectors = np.where(arranged, in_order, vectors)
        # A short reduction is unrolled: what it reads stays in registers while the loop around it goes on.
        kept = vectors * body.chain <= VECTOR_REGISTERS - body.accumulators - 1
        repeats = np.where(kept, _repeats(nest, read), 1)
        slots = _slots_of_load(population, read.buffer, _conditions_asked(nest, body, read))
        loads = loads + vectors * slots / repeats
    return loads


def _conditions_asked(nest: Nest, body: _Body, read: Access) -> Floats:
    """[programs]: how often a load asks a condition on the position outside of its rows: always where a step
    has several, and once before the loops that don't change the only one."""
    outer = sorted({axis for index in read.indices[:-1] for axis in index.axes})
    along = [axis for axis in nest.node.reduction if axis not in outer]
    is_one = body.tile[outer].prod(axis=0) == 1
    return np.where(is_one, 1.0 / nest.extents[nest.depth - 2, along].prod(axis=0), 1.0)


def _slots_of_load(population: Population, buffer: str, asked: Floats) -> Floats:
    """[programs]: what a load takes, counted in loads: more where the value is computed on the spot. `asked`
    is how often it asks the producer's condition."""
    sketch = population.sketch
    producer = sketch.dag.producer.get(buffer)
    if producer is None:
        return np.ones(len(population))
    branches = INLINE_CYCLES * producer.has_branch * asked
    slots = (producer.flops / ISSUE_WIDTH + branches) * LOADS_PER_CYCLE
    for read in producer.reads:
        slots = slots + _slots_of_load(population, read.buffer, asked)
    stage = sketch.stage[producer.name]
    inlined = (stage.placement is Placement.INLINE) | is_inlined(population, producer.name)
    return np.where(inlined, slots, 1.0)


def loads_of(read: Access, tile: Ints, axis: int | None, lanes: int, is_arranged: bool = False) -> Floats:
    """Load instructions of one access per innermost step: vectors, or scalars for all lanes, or a gather."""
    used = read.axes
    rows = tile[[a for a in used if a != axis]].prod(axis=0, dtype=np.float64)
    if axis not in used or axis is None:
        return rows
    *outer, last = read.indices
    if all(term.divisor > 1 for index in read.indices for term in index.terms if term.axis == axis):
        return rows  # a group of lanes reads the same value
    contiguous = Term(axis, 1) in last.terms and not any(axis in index.axes for index in outer)
    return rows * (vector_instructions(tile[axis], lanes) if contiguous or is_arranged else 2.0 * tile[axis])


def _repeats(nest: Nest, read: Access) -> Ints:
    """[programs]: iterations of the loop right outside the innermost reduction, if they all read the same."""
    order = np.arange(1, len(nest.node.axes) + 1)[:, None]
    last = np.argmax(np.where(nest.extents[-3] > 1, order, 0), axis=0)
    moves = np.isin(last, sorted(read.axes))
    extent = np.take_along_axis(nest.extents[-3], last[None], axis=0)[0]
    return np.where(moves, 1, extent)


def _traffic_terms(population: Population, nest: Nest, device: Device) -> dict[str, Floats]:
    """Bytes that cross into each cache level, and the footprint at each boundary."""
    dag = population.sketch.dag
    accesses = [*nest.node.reads, nest.node.write]
    loops = nest.by_loop()
    levels = np.array([*(level for level, _ in nest.loops), nest.depth])
    sizes = [_footprint(population, nest, access, loops.inside, levels) for access in accesses]
    total = np.add.reduce(sizes)
    crossings = [size * loops.visits(access) for access, size in zip(accesses, sizes, strict=True)]
    stalls = [
        np.where(_copied_at(population, nest, access) == 0, 1.0, _stalls(access, nest, dag, device))
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


def _copied_at(population: Population, nest: Nest, access: Access) -> Ints:
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
    elements = np.multiply.reduce(region(access, inside, buffer.shape), dtype=np.float64)
    copied = levels[:, None] >= _copied_at(population, nest, access)
    return np.where(copied, np.maximum(elements * buffer.item_bytes, LINE_BYTES), lines)


def _copy_cycles(population: Population, nest: Nest, device: Device) -> Floats:
    """What it costs to copy operands into the order of the loops, every time their part changes."""
    cycles = np.zeros(len(population))
    for access in dict.fromkeys(nest.node.reads):
        copied_at = _copied_at(population, nest, access)
        buffer = population.sketch.dag.buffer[access.buffer]
        elements = np.multiply.reduce(region(access, nest.inside, buffer.shape), dtype=np.float64)
        trips = np.concatenate([np.ones((1, len(population))), nest.extents.prod(axis=1)])
        copies = np.cumprod(trips, axis=0)
        for level in range(0 if not buffer.constant else 1, nest.depth):
            here = elements[level] * copies[level] * buffer.item_bytes / device.vector_bytes * COPY_CYCLES
            cycles = cycles + np.where(copied_at == level, here, 0.0)
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


def _shape_terms(nest: Nest) -> dict[str, Floats]:
    """The trips of every level and the innermost factors, outermost first."""
    return {f"trips_{level}": nest.trips(level).astype(np.float64) for level in range(nest.depth)}


def _epilogue_seconds(nest: Nest, dag: Dag, device: Device) -> Floats:
    """Writing the result and reading it again, from the cache that holds the tile in between."""
    buffer = dag.buffer[nest.node.write.buffer]
    level = nest.stage.epilogue_level
    tile = footprint_bytes(nest.node.write, nest.inside[level], buffer, LINE_BYTES)
    rate = rate_of(tile, device)
    launch = 0.0 if level else PARALLEL_LAUNCH_S
    return np.asarray(2 * buffer.num_bytes / rate / CYCLES_PER_S / device.cores + launch)
