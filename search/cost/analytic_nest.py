"""The analytic estimate of nests, which read data from the cache that the nest before left it in.

An iteration takes, in cycles (speeds and factors in search.cost.machine),
    max(operations / issue, accesses / loads) / parallel + gathers,    at least latency / (parallel * chains)
where `parallel` lanes are computed together and a reduction has `chains` accumulators. Adding up a partial
result takes a little more. Moving the data takes its size over the rate of the cache that holds the part of
it which an iteration of the shared outer loops touches. The nest takes the longer of both and a share of the
other.
"""

from __future__ import annotations

import math

import numpy as np

from search.cost.machine import LINE_BYTES, Machine, balance_of
from search.dag import AxisKind, Node, extent_of
from search.programs.compute_location import (
    count_gathers,
    is_inlined,
    location_depth,
    parallel_chunks,
    row_parts,
    vector_extent,
    vector_lanes,
)
from search.programs.nest import Floats, Nest, region, vector_instructions
from search.programs.program import Population
from search.sketches.stage import Stage, StageKind
from search.sketches.variables import transposed_axis


def nest_terms(population: Population, stage: Stage, machine: Machine) -> dict[str, Floats]:
    """Return the quantities of a nest, wherever it is computed, each [programs]; `s` is its seconds."""
    host = population.sketch.hosts.get(stage.node)
    if host is not None and population.sketch.stage[host.name].placement is StageKind.TILED:
        seconds = _seconds_in_tiles(population, stage, host, machine)
    else:
        seconds = _nest_seconds(population, stage, machine)
    return {
        "s": seconds,
        "vector": vector_lanes(population, stage).astype(np.float64),
        "chunks": parallel_chunks(population, population.sketch.dag.node[stage.node]),
        "depth": np.where(
            is_inlined(population, stage.node), 0.0, 1.0 + location_depth(population, stage.node)
        ),
    }


def unrolled_seconds(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return [programs]: the seconds of a nest around small constant matrices, one vectorized pass over its
    data."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    lanes, chunks = np.ones(len(population)), np.ones(len(population))
    for axis in node.spatial:
        if (node.name, axis) in population.sketch.columns:
            factors = population.factors(node.name, axis)
            chunks = chunks * factors[:, 0]
            if axis == node.vector_axis:
                lanes = np.minimum(
                    factors[:, 1], machine.device.vector_bytes // dag.buffer[node.write.buffer].item_bytes
                )
    touched = sum(dag.buffer[access.buffer].num_bytes for access in (*node.reads, node.write))
    cycles = np.maximum(node.iterations * max(node.flops, 1.0) / lanes, touched / machine.l3_rate)
    return np.asarray(
        cycles / machine.hertz / machine.cores / balance_of(chunks, machine.cores)
        + np.where(chunks > 1, machine.launch_s, 0.0)
    )


def _nest_seconds(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return the longer of computing and moving data, and a share of the other."""
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    inlined = is_inlined(population, stage.node)
    cycles = _compute_cycles(population, stage, machine)
    if stage.rfactor:
        results = extent_of(node, node.spatial) * population.chosen(stage.node, "lanes")
        cycles = cycles + results * machine.factors.row_cycles
    cycles = np.where(inlined, _inlined_cycles(population, node, machine), cycles)
    # A nest that is computed elsewhere runs in the parallel chunks of its host.
    elsewhere = (location_depth(population, stage.node) > 0) | inlined
    hosted = parallel_chunks(population, sketch.hosts.get(stage.node, node))
    chunks = np.where(elsewhere, hosted, parallel_chunks(population, node))
    own_s = cycles / machine.hertz / machine.cores / balance_of(chunks, machine.cores)
    memory_s = np.where(inlined, 0.0, _memory_seconds(population, stage, machine))
    longest = np.maximum(own_s, memory_s)
    is_launched = ~inlined & (location_depth(population, stage.node) == 0) & (chunks > 1)
    return np.asarray(
        longest
        + machine.factors.overlap * (own_s + memory_s - longest)
        + np.where(is_launched, machine.launch_s, 0.0)
    )


def _compute_cycles(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return the cycles of all iterations on one core."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    lanes = machine.device.lanes(dag.buffer[node.write.buffer].item_bytes)
    used, extent = vector_lanes(population, stage), vector_extent(population, stage)
    gathers = count_gathers(population, stage)
    if not node.reduction:
        # The compiler vectorizes plain loops by itself.
        used = np.where((used == 1) & (gathers == 0), np.minimum(lanes, extent), used)
    parallel = extent / vector_instructions(extent, np.minimum(used, lanes))
    moved = (len(node.reads) + 1) / machine.loads
    step = np.maximum(max(node.flops, 1.0) / machine.issue(dag.buffer[node.write.buffer]), moved) / parallel
    step = step + np.where(used > 1, machine.gather_cycles * gathers, 0.0)
    if transposed_axis(node) is not None:
        # A line of the operand's rows comes from the second cache for each part that is read together.
        step = step + LINE_BYTES / machine.l2_rate / row_parts(population, stage)
    if node.reduction:
        # There is one accumulator for each vector, and every step waits for the one before.
        chains = np.maximum(used / lanes, 1.0)
        step = np.maximum(step, machine.latency_cycles / (parallel * chains))
    return np.asarray(node.iterations * step)


def _inlined_cycles(population: Population, node: Node, machine: Machine) -> Floats:
    """Return the cycles on one core of a node that is computed again for every iteration that reads it, in
    the reader's vectors."""
    sketch = population.sketch
    written = sketch.dag.buffer[node.write.buffer]
    lanes, issue = machine.device.lanes(written.item_bytes), machine.issue(written)
    cycles = np.zeros(len(population))
    for reader in sketch.dag.consumers(node):
        stage = sketch.stage[reader.name]
        if stage.placement is not StageKind.NEST:  # the loads of tiles count it
            continue
        is_vector = (vector_lanes(population, stage) > 1) | (not reader.reduction)
        parallel = np.where(is_vector, lanes, 1)
        cycles = cycles + reader.iterations * max(node.flops, 1.0) / issue / parallel
    return cycles


def _memory_seconds(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return the seconds of reading every operand and writing the result once.

    They are in the cache that holds their part for one iteration of the host's loops around the nest.
    """
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    depth = location_depth(population, stage.node)
    host = sketch.hosts.get(stage.node, node)
    extents = np.cumprod([1, *(axis.extent for axis in host.axes if axis.kind is AxisKind.SPATIAL)])
    pieces = extents[np.minimum(depth, len(extents) - 1)]
    seconds = np.zeros(len(population))
    for access in (*node.reads, *node.writes):
        size = sketch.dag.buffer[access.buffer].num_bytes
        rate = machine.rate_of(size / pieces)
        seconds = seconds + size / rate / machine.hertz / machine.cores
    return seconds


def _seconds_in_tiles(population: Population, stage: Stage, host: Node, machine: Machine) -> Floats:
    """Return the seconds of a nest that a tiled host reads, at its chosen location."""
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    nest = Nest.of(population, sketch.stage[host.name])
    buffer = sketch.dag.buffer[node.write.buffer]
    reads = [read for read in nest.node.reads if read.buffer == buffer.name]
    lanes = machine.device.lanes(buffer.item_bytes)
    elements = math.prod(buffer.shape)
    rate = (
        machine.l2_rate if buffer.num_bytes * 2 < machine.device.l2_bytes * machine.cores else machine.l3_rate
    )
    used = vector_lanes(population, stage)
    # The compiler vectorizes plain loops by itself.
    parallel = np.where(used == 1, lanes, np.minimum(used, lanes))
    branches = machine.factors.branch_cycles * node.has_branch
    element = (branches + node.flops / machine.issue(buffer)) / parallel
    chunks = parallel_chunks(population, node)
    root = elements * (element + 2 * buffer.item_bytes / rate) / balance_of(chunks, machine.cores)
    root = root + np.where(chunks > 1, machine.launch_s * machine.hertz * machine.cores, 0.0)
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
        tile = sum(np.multiply.reduce(touched, dtype=np.float64) for touched in regions)
        visits = np.prod([nest.trips(i) for i in range(level)], axis=0, dtype=np.float64)
        options.append(tile * visits * (element + 2 * buffer.item_bytes / machine.l1_rate))
    chosen = np.choose(population.column(stage.node, "location"), options)
    return np.asarray(chosen / machine.hertz / machine.cores)
