"""The analytic estimate of nests. They read data from the cache in which the previous nest left it.

The cycles of an iteration are (speeds and factors: search.cost.cost_parameters)
    max(operations / issue, accesses / loads) / parallel + gathers,    at least latency / (parallel * chains)
where `parallel` lanes are computed together and a reduction has `chains` accumulators. Summing a partial
result takes a little more. Moving data takes its size divided by the rate of a cache. That cache holds the
part that an iteration of the shared outer loops touches. The nest takes the longer of both times and a
fraction of the other.
"""

from __future__ import annotations

import math

import numpy as np

from search.cost.border_tiles import padding_of
from search.cost.cost_parameters import LINE_BYTES, CostParameters, balance_of
from search.dag import AxisKind, Node, extent_of
from search.programs.compute_location import (
    count_gathers,
    is_inlined,
    is_scalar_loop,
    location_depth,
    parallel_chunks,
    row_parts,
    vector_extent,
    vector_lanes,
)
from search.programs.nest import Floats, Nest, region, vector_instructions
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.stage import Rfactor, Stage, StageKind
from search.sketches.variables import transposed_axis


def nest_terms(population: Population, stage: Stage, parameters: CostParameters) -> dict[str, Floats]:
    """Return the quantities of a nest at any compute location, each [programs]; `s` is its seconds."""
    compute_at = population.sketch.compute_at.get(stage.node)
    if compute_at is not None and population.sketch.stage[compute_at.name].kind is StageKind.TILED:
        seconds = _seconds_in_tiles(population, stage, compute_at, parameters)
    else:
        seconds = _nest_seconds(population, stage, parameters)
    return {
        "s": seconds,
        "vector": vector_lanes(population, stage).astype(np.float64),
        "chunks": _chunks(population, stage),
        "depth": np.where(
            is_inlined(population, stage.node), 0.0, 1.0 + location_depth(population, stage.node)
        ),
    }


def unrolled_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return [programs]: the seconds of a nest around small constant matrices, one vectorized pass over its
    data."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    lanes, chunks = np.ones(len(population)), np.full(len(population), float(_blocks(node, stage)))
    for axis in node.spatial:
        if (node.name, axis) in population.sketch.columns:
            factors = population.factors(node.name, axis)
            if not stage.blocks:
                chunks = chunks * factors[:, 0]
            if axis == node.vector_axis:
                lanes = np.minimum(
                    factors[:, 1], parameters.device.vector_bytes // dag.buffer[node.write.buffer].item_bytes
                )
    touched = sum(dag.buffer[access.buffer].num_bytes for access in (*node.reads, node.write))
    rate = parameters.rate_of(touched / chunks) if stage.blocks else parameters.l3_rate
    cycles = np.maximum(node.iterations * _operations(node) / lanes, touched / rate)
    # A nest without a channel axis is recomputed for each block of channels.
    repeats = 1 if stage.channels else stage.channel_blocks
    return np.asarray(
        repeats * cycles / parameters.hertz / parameters.cores / balance_of(chunks, parameters.cores)
        + np.where((chunks > 1) & (not stage.blocks), parameters.launch_s, 0.0)
    )


def _operations(node: Node) -> float:
    """Return the instructions of an iteration of a nest around small constant matrices.

    If an iteration multiplies an inner sum by a matrix's element, it takes one instruction to add this
    product, and another for each term of the inner sum. All results that differ only in the matrix's element
    share the inner sum (compiler.codegen.shared_factors).
    """
    terms = (node.flops - 1) // 2
    matrix = next((read.axes for read in node.reads if node.vector_axis not in read.axes), frozenset())
    shared = matrix.intersection(node.spatial)
    if terms < 2 or not shared:
        return max(node.flops, 1.0)
    return 1.0 + terms / extent_of(node, sorted(shared))


def block_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return [programs]: the seconds of the last nest of a chain in blocks, and of starting their parallel
    loop."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    chunks = np.full(len(population), float(_blocks(node, stage)))
    result = dag.buffer[node.write.buffer]
    moved = 2.0 * result.num_bytes
    cycles = np.maximum(
        node.iterations * max(node.flops, 1.0) / parameters.device.lanes(result.item_bytes),
        moved / parameters.rate_of(moved / chunks),
    )
    balance = balance_of(chunks, parameters.cores)
    return np.asarray(cycles / parameters.hertz / parameters.cores / balance + parameters.launch_s)


def _blocks(node: Node, stage: Stage) -> int:
    """Return the number of parallel blocks of a stage that is computed in blocks; 1 for others."""
    return stage.blocks * stage.channel_blocks * extent_of(node, stage.rows[:-1]) if stage.blocks else 1


def _nest_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the longer of computing and moving data, and a share of the other."""
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    inlined = is_inlined(population, stage.node)
    cycles = _compute_cycles(population, stage, parameters)
    cycles = np.where(inlined, _inlined_cycles(population, node, parameters), cycles)
    # A nest that is computed at a loop of its consumer runs in the consumer's parallel chunks.
    is_elsewhere = (location_depth(population, stage.node) > 0) | inlined | bool(stage.blocks)
    own_chunks = _chunks(population, stage)
    compute_at = sketch.compute_at.get(stage.node)
    chunks_of_consumer = own_chunks if compute_at is None else parallel_chunks(population, compute_at)
    chunks = np.where(is_elsewhere, chunks_of_consumer, own_chunks)
    launches = (~is_elsewhere & (chunks > 1)).astype(np.float64)
    balance = balance_of(chunks, parameters.cores)
    if stage.rfactor:
        lanes = population.chosen(stage.node, "lanes")
        sums = extent_of(node, node.spatial) * lanes * parameters.factors.row_cycles
        if stage.rfactor is Rfactor.OUTER:  # the partial results have a parallel loop of their own
            cycles = cycles / balance_of(lanes, parameters.cores) + sums / balance
            balance, launches = np.ones(len(population)), launches + 1
        else:
            cycles = cycles + sums
            launches = launches * (2 if stage.rfactor.has_own_nest else 1)
    own_s = cycles / parameters.hertz / parameters.cores / balance
    memory_s = np.where(inlined, 0.0, _memory_seconds(population, stage, parameters))
    longest = np.maximum(own_s, memory_s)
    return np.asarray(
        longest + parameters.factors.overlap * (own_s + memory_s - longest) + launches * parameters.launch_s
    )


def _chunks(population: Population, stage: Stage) -> Ints:
    """Return [programs]: the iterations of a nest's parallel loops, or the blocks that it is computed in."""
    node = population.sketch.dag.node[stage.node]
    return (
        np.full(len(population), _blocks(node, stage)) if stage.blocks else parallel_chunks(population, node)
    )


def _compute_cycles(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the cycles of all iterations on one core."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    lanes = parameters.device.lanes(dag.buffer[node.write.buffer].item_bytes)
    used, extent = vector_lanes(population, stage), vector_extent(population, stage)
    gathers = count_gathers(population, stage)
    if not node.reduction:
        # The compiler vectorizes plain loops by itself.
        is_plain = (used == 1) & (gathers == 0) & ~is_scalar_loop(population, stage)
        used = np.where(is_plain, np.minimum(lanes, extent), used)
    parallel = extent / vector_instructions(extent, np.minimum(used, lanes))
    moved = (len(node.reads) + 1) / parameters.loads
    work = max(node.flops + dag.widenings(node), 1.0)
    step = np.maximum(work / parameters.issue(dag.buffer[node.write.buffer]), moved) / parallel
    step = step + np.where(used > 1, parameters.gather_cycles * gathers, 0.0)
    if transposed_axis(node) is not None:
        # Each part that is read together loads a line of the operand's rows from the L2 cache.
        step = step + LINE_BYTES / parameters.l2_rate / row_parts(population, stage)
    if node.reduction:
        # There is one accumulator for each vector, and every step waits for the previous one.
        chains = np.maximum(used / lanes, 1.0)
        step = np.maximum(step, parameters.latency_cycles / (parallel * chains))
    return np.asarray(node.iterations * step)


def _inlined_cycles(population: Population, node: Node, parameters: CostParameters) -> Floats:
    """Return the cycles on one core of an inlined node, which is recomputed in the consumer's vectors at each
    read.
    """
    sketch = population.sketch
    written = sketch.dag.buffer[node.write.buffer]
    lanes, issue = parameters.device.lanes(written.item_bytes), parameters.issue(written)
    cycles = np.zeros(len(population))
    for reader in sketch.dag.consumers(node):
        stage = sketch.stage[reader.name]
        if stage.kind is not StageKind.NEST:  # the loads of tiles count it
            continue
        is_vector = (vector_lanes(population, stage) > 1) | (not reader.reduction)
        parallel = np.where(is_vector, lanes, 1)
        work = max(node.flops + sketch.dag.widenings(node), 1.0)
        cycles = cycles + reader.iterations * work / issue / parallel
    return cycles


def _memory_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the seconds of reading every operand and writing the result once.

    The data is in the cache that fits its part for one iteration of the consumer's loops around the nest.
    """
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    depth = location_depth(population, stage.node)
    compute_at = sketch.compute_at.get(stage.node, node)
    extents = np.cumprod([1, *(axis.extent for axis in compute_at.axes if axis.kind is AxisKind.SPATIAL)])
    pieces = _chunks(population, stage) if stage.blocks else extents[np.minimum(depth, len(extents) - 1)]
    seconds = np.zeros(len(population))
    for access in (*node.reads, *node.writes):
        size = sketch.dag.buffer[access.buffer].num_bytes
        rate = parameters.rate_of(size / pieces)
        seconds = seconds + size / rate / parameters.hertz / parameters.cores
    return seconds


def _seconds_in_tiles(
    population: Population, stage: Stage, compute_at: Node, parameters: CostParameters
) -> Floats:
    """Return the seconds of a nest that is computed at a loop of a tiled consumer."""
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    nest = Nest.of(population, sketch.stage[compute_at.name])
    buffer = sketch.dag.buffer[node.write.buffer]
    reads = [read for read in nest.node.reads if read.buffer == buffer.name]
    lanes = parameters.device.lanes(buffer.item_bytes)
    elements = math.prod(buffer.shape)
    rate = (
        parameters.l2_rate
        if buffer.num_bytes * 2 < parameters.device.l2_bytes * parameters.cores
        else parameters.l3_rate
    )
    used = vector_lanes(population, stage)
    # The compiler vectorizes plain loops by itself.
    parallel = np.where(used == 1, lanes, np.minimum(used, lanes))
    padding = padding_of(sketch.dag, node)
    # A row of elements that aren't padded along it has one condition.
    is_by_row = padding is not None and not any(padding[-1])
    work = node.flops + sketch.dag.widenings(node)

    def cycles(row: Floats | Ints) -> Floats:
        """Return [programs]: the cycles of an element of a row."""
        branches = parameters.factors.branch_cycles * node.has_branch
        sharing = np.maximum(parallel, row) if is_by_row else parallel
        return np.asarray(branches / sharing + work / parameters.issue(buffer) / parallel)

    chunks = parallel_chunks(population, node)
    row = np.full(len(population), buffer.shape[-1] if buffer.shape else 1)
    root = elements * (cycles(row) + 2 * buffer.item_bytes / rate) / balance_of(chunks, parameters.cores)
    root = root + np.where(chunks > 1, parameters.launch_s * parameters.hertz * parameters.cores, 0.0)
    # The tiles' loads count an inlined node.
    costs = {"inline": np.zeros(len(population)), "root": root}
    variable = sketch.choice(stage.node, "location")
    assert variable is not None
    options = []
    for option in map(str, variable.options):
        if option in costs:
            options.append(costs[option])
            continue
        level = int(option)
        regions = [region(read, nest.inside[level], buffer.shape) for read in reads]
        moved = 2 * buffer.item_bytes / parameters.l1_rate
        tiles = [math.prod(touched) * (cycles(touched[-1]) + moved) for touched in regions]
        visits = np.prod([nest.trips(i) for i in range(level)], axis=0, dtype=np.float64)
        options.append(sum(tiles) * visits)
    chosen = np.choose(population.column(stage.node, "location"), options)
    return np.asarray(chosen / parameters.hertz / parameters.cores)
