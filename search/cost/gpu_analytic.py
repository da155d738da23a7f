"""The analytic estimate of programs for GPUs: a roofline for every kernel.

A tiled kernel runs in waves of as many blocks as fit the multiprocessors at once. A block's threads,
registers and shared memory limit that number. A wave takes the longer of two times: the serial steps,
iterations and fetches of one thread, or the issue of all warps' instructions. The kernel takes at least as
long as its traffic with the cache and with memory. Other kernels move their operands once, and each thread or
block waits for its loads in turn.

A thread loads neighbouring values from shared memory in vectors of 16 bytes. An operand that is computed
meanwhile, such as a padded one, counts value by value, as it was loaded when the estimate was fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.device import Gpu
from search.cost.cost_parameters import CostParameters, ShapeFactors, balance_of
from search.dag import Buffer, BufferAccess, Node, extent_of
from search.programs.gpu_nest import FETCH, VTHREAD, GpuTile
from search.programs.nest import Floats, elements_of, region
from search.programs.program import Population
from search.programs.tensor_tile import TensorTile
from search.sketches.factors import Ints
from search.sketches.row_registers import row_registers
from search.sketches.stage import Stage
from search.sketches.variables import fetch_kind

# Global memory is read in sectors.
SECTOR_BYTES = 32
# Multiple buffering divides the wait for a fetch by the number of buffers to this power.
STAGES_POWER = 0.75
# Loads that a thread of an untiled kernel has in flight.
LOADS_IN_FLIGHT = 8
# The widest load of a thread.
VECTOR_BYTES = 16
# The serial operations that halve a block's partial results: a load, an addition and a store.
COMBINE_INSTRUCTIONS = 3


@dataclass(frozen=True)
class GpuSpeeds:
    """The rates of one multiprocessor in bytes per cycle, from the device's profile. `load_cycles` is the
    latency of a load from memory."""

    hertz: float
    launch_s: float
    l2_bytes: float
    memory_bytes: float
    load_cycles: float

    @classmethod
    def of(cls, parameters: CostParameters) -> GpuSpeeds:
        speeds = parameters.speeds
        return cls(
            hertz=speeds.hertz,
            launch_s=speeds.launch_s,
            l2_bytes=speeds.l2_rate,
            memory_bytes=speeds.memory_rate_all / parameters.cores,
            load_cycles=speeds.gather_cycles,
        )


def multiply_adds(parameters: CostParameters, buffer: Buffer, prefix: str = "") -> float:
    """Return the multiply-adds per cycle on a buffer's elements, with the prefix "tensor" on tensor cores."""
    return parameters.speeds.issue(prefix + buffer.dtype) * parameters.device.vector_bytes / buffer.item_bytes


def tiled_terms(population: Population, stage: Stage, parameters: CostParameters) -> dict[str, Floats]:
    """Return the quantities of a tiled kernel, each [programs]; `node_s` is its seconds."""
    gpu = population.sketch.gpu
    assert gpu is not None
    tile, speeds, factors = GpuTile.of(population, stage), GpuSpeeds.of(parameters), parameters.factors
    fma_lanes = multiply_adds(parameters, tile.dag.buffer[tile.nest.node.write.buffer])
    issued = fma_lanes / gpu.warp_size  # warp instructions per cycle
    blocks = tile.blocks.astype(np.float64)
    resident = np.minimum(_resident(tile, gpu), np.ceil(blocks / parameters.cores))
    waves = np.ceil(blocks / (resident * parameters.cores))
    warps = np.ceil(tile.threads / gpu.warp_size)
    steps = tile.nest.inside[0].prod(axis=0, dtype=np.float64)
    of_thread = steps / (blocks * tile.threads * tile.accumulators)
    loads = _loads(tile)
    unroll = population.chosen(stage.node, "unroll")
    unrolled = np.minimum(_unrolled_steps(tile, unroll), factors.gpu_unrolled_steps)
    step = factors.gpu_step_cycles * tile.accumulators + factors.gpu_load_cycles * loads
    step = np.maximum(step, parameters.speeds.latency_cycles)  # the next step needs this one's results
    step = step + np.where(_has_local_sums(tile, unroll), factors.gpu_local_cycles * tile.accumulators, 0.0)
    moved = _moved_bytes(tile, blocks)
    unique = float(sum(_bytes(tile, access) for access in (*tile.nest.node.reads, tile.nest.node.write)))
    alone = (
        of_thread * step
        + of_thread / unrolled * factors.gpu_loop_latencies * parameters.speeds.latency_cycles
        + tile.fetches * _fetch_latencies(population, tile, factors) * speeds.load_cycles
        + tile.fetches * factors.gpu_fetch_wait * speeds.load_cycles / tile.stages**STAGES_POWER
    )
    cycles = {
        "compute": waves * resident * warps * of_thread * (tile.accumulators + loads) / issued,
        "alone": waves * alone,
        "l2": moved / min(speeds.l2_bytes, factors.gpu_cache_bytes) / parameters.cores,
        "memory": np.minimum(moved, unique) / speeds.memory_bytes / parameters.cores,
    }
    every = np.stack(list(cycles.values())) / speeds.hertz
    return {
        "node_s": every.max(axis=0) + speeds.launch_s,
        "compute_s": every[0],
        "alone_s": every[1],
        "unrolled_steps": unrolled,
        "cycles": steps,
        "accumulators": tile.accumulators.astype(np.float64),
        "inner_reduction": tile.nest.inside[FETCH + 1][list(tile.nest.node.reduction)].prod(axis=0) * 1.0,
        "loads_per_fma": loads / tile.accumulators,
        "l2_traffic": moved,
        "memory_traffic": np.minimum(moved, unique),
        "chunks": blocks,
        "balance": balance_of(blocks / resident, parameters.cores),
        "threads": tile.threads.astype(np.float64),
        "resident_blocks": resident,
        "shared_bytes": tile.shared_bytes.astype(np.float64),
        "registers": tile.registers.astype(np.float64),
        "unroll": population.column(stage.node, "unroll").astype(np.float64),
        **{f"trips_{level}": tile.nest.trips(level) * 1.0 for level in range(6)},
    }


def _unrolled_steps(tile: GpuTile, unroll: Ints) -> Floats:
    """Return the number of reduction steps that are unrolled together.

    TVM unrolls loops from the innermost outwards as long as their body has at most `unroll` statements.
    """
    statements, steps = np.ones(len(unroll)), np.ones(len(unroll))
    goes_on = np.ones(len(unroll), dtype=bool)
    for level in reversed(range(FETCH + 1, len(tile.stage.structure))):
        trips = tile.nest.trips(level).astype(np.float64)
        goes_on &= (statements * trips <= unroll) | (trips == 1)
        statements = np.where(goes_on, statements * trips, statements)
        if tile.stage.structure[level] == "R":
            steps = np.where(goes_on, steps * trips, steps)
    return steps


def _resident(tile: GpuTile, gpu: Gpu) -> Floats:
    """Return the blocks that one multiprocessor runs at once."""
    limits = [
        gpu.resident_threads // tile.threads,
        gpu.registers // (tile.threads * tile.registers),
        gpu.resident_shared_bytes // np.maximum(tile.shared_bytes, 1),
    ]
    return np.clip(np.minimum.reduce(limits), 1, gpu.resident_blocks).astype(np.float64)


def _has_local_sums(tile: GpuTile, unroll: Ints) -> NDArray[np.bool_]:
    """Return whether a loop over a thread's results isn't unrolled, so that they are in local memory."""
    outer = tile.stage.structure.rindex("S", FETCH, -1)
    statements = tile.nest.inside[outer].prod(axis=0) * tile.vthreads
    return np.asarray((tile.nest.trips(outer) > 1) & (statements > unroll))


def _loads(tile: GpuTile) -> Floats:
    """Return a thread's loads from shared memory in one step of the reduction. Loads of neighbours in several
    steps are one."""
    nest = tile.nest
    own = nest.inside[FETCH] * nest.extents[VTHREAD]
    own[list(nest.node.reduction)] = 1
    total = np.zeros(own.shape[-1])
    for read in nest.node.reads:
        buffer = tile.dag.buffer[read.buffer]
        run = region(read, nest.inside[FETCH + 1], buffer.shape)[-1]
        vector = np.minimum(run, max(VECTOR_BYTES // buffer.item_bytes, 1))
        total = total + elements_of(region(read, own, buffer.shape)) / vector
    return total


def _fetch_latencies(population: Population, tile: GpuTile, factors: ShapeFactors) -> Floats:
    """Return the time in which a thread loads its part of all operands' tiles, in latencies of a load from
    memory."""
    total, stage = np.zeros(len(population)), tile.stage
    for read in tile.nest.node.reads:
        if read.buffer in stage.shared:
            elements = tile.elements(read) / tile.threads
            total = total + _load_latencies(population, stage, read, elements, factors)
    return total


def _load_latencies(
    population: Population,
    stage: Stage,
    read: BufferAccess,
    elements: Floats,
    factors: ShapeFactors,
    copies: bool = False,
) -> Floats:
    """Return the time in which a thread loads `elements` of an operand, in latencies of a load from memory.

    In a loop that isn't unrolled, loads wait for those of the iteration before. Asynchronous `copies` don't.
    """
    lanes = population.chosen(stage.node, fetch_kind(read.buffer))
    iterations = np.ceil(elements / lanes)
    loads = iterations * lanes if read.buffer in population.sketch.dag.producer else iterations
    latencies = np.asarray(loads * factors.gpu_unrolled_load)
    if copies:
        return latencies
    is_unrolled = loads <= population.chosen(stage.node, "unroll")
    return latencies + np.where(is_unrolled, 0.0, iterations * factors.gpu_serial_load)


def _moved_bytes(tile: GpuTile, blocks: Floats) -> Floats:
    """Return the bytes that all blocks exchange with global memory, in whole sectors."""
    moved = np.full(len(blocks), float(_bytes(tile, tile.nest.node.write)))
    for read in tile.nest.node.reads:
        buffer = tile.dag.buffer[read.buffer]
        run = tile.run(read)
        sectors = np.ceil(run * buffer.item_bytes / SECTOR_BYTES) * SECTOR_BYTES / run
        moved = moved + blocks * tile.fetches * tile.elements(read) * sectors
    return moved


def _bytes(tile: GpuTile, access: BufferAccess) -> int:
    return tile.dag.buffer[access.buffer].num_bytes


def tensor_seconds(tile: TensorTile, parameters: CostParameters) -> Floats:
    """Return the seconds of a kernel on tensor cores, from its instructions, traffic and latency."""
    speeds, gpu = GpuSpeeds.of(parameters), _gpu_of(parameters)
    operand = tile.population.sketch.dag.buffer[tile.node.reads[0].buffer]
    item, tensor_lanes = operand.item_bytes, tile.rate * multiply_adds(parameters, operand, "tensor")
    blocks, fetches = tile.blocks.astype(np.float64), tile.count("k")
    resident = np.clip(tile.resident(gpu), 1, gpu.resident_blocks)
    resident = np.minimum(resident, np.ceil(blocks / parameters.cores))
    busy = balance_of(blocks / resident, parameters.cores)
    issue = np.minimum(resident * tile.warps / parameters.factors.tensor_warps, 1.0)
    steps = blocks * fetches * tile.tile("i") * tile.tile("j") * tile.tile("k")
    moved = blocks * fetches * (tile.tile("i") + tile.tile("j")) * tile.tile("k") * item
    wait = 1 / tile.stages + tile.is_fetched_by_threads * _tensor_fetch_latencies(tile, parameters.factors)
    wait = blocks * fetches * wait * speeds.load_cycles / resident
    every = np.stack([steps / tensor_lanes / issue, moved / speeds.l2_bytes, wait])
    every = every / speeds.hertz / parameters.cores
    longest, overlap = every.max(axis=0), parameters.factors.gpu_overlap
    return np.asarray(
        (longest + overlap * (every.sum(axis=0) - longest) / len(every)) / busy + speeds.launch_s
    )


def _tensor_fetch_latencies(tile: TensorTile, factors: ShapeFactors) -> Floats:
    """Return the time in which a thread loads its part of both operands' tiles, in latencies of a load from
    memory."""
    population, gpu = tile.population, tile.population.sketch.gpu
    assert gpu is not None
    total = np.zeros(len(population))
    for number, part in ((tile.product.first, "i"), (tile.product.second, "j")):
        elements = tile.tile(part) * tile.tile("k") / (tile.warps * gpu.warp_size)
        read = tile.node.reads[number]
        unrolls = (tile.stage.node, "unroll") in population.sketch.columns
        copies = read.buffer not in population.sketch.dag.producer or not unrolls
        total = total + _load_latencies(population, tile.stage, read, elements, factors, copies)
    return total


def thread_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the seconds of a kernel whose threads compute a few results each."""
    speeds, gpu = GpuSpeeds.of(parameters), _gpu_of(parameters)
    node = population.sketch.dag.node[stage.node]
    axes = node.looped_spatial
    has_lanes = (node.name, "lanes") in population.sketch.columns
    lanes = population.chosen(node.name, "lanes") if has_lanes else np.ones(len(population), dtype=np.int64)
    count = np.ceil(extent_of(node, axes) / lanes)
    threads = population.chosen(node.name, "threads")
    blocks = np.ceil(count / threads)
    resident = np.clip(gpu.resident_threads // threads, 1, gpu.resident_blocks)
    rounds = np.ceil(blocks / (resident * parameters.cores))
    # Loops over constants are unrolled, and their loads are in flight together.
    wait = rounds * speeds.load_cycles * (1 + extent_of(node, node.reduction) / LOADS_IN_FLIGHT)
    fma_lanes = multiply_adds(parameters, population.sketch.dag.buffer[node.write.buffer])
    work = node.iterations * max(node.flops, 1.0) / fma_lanes / parameters.cores
    memory = _traffic(population, node, axes[-1] if axes else None) / speeds.memory_bytes / parameters.cores
    return np.asarray(
        np.maximum.reduce([wait, np.full_like(wait, max(work, memory))]) / speeds.hertz + speeds.launch_s
    )


def _traffic(population: Population, node: Node, neighbours: int | None) -> float:
    """Return the bytes of traffic if neighbouring threads are neighbours along one axis: a whole sector for
    each element if the elements aren't adjacent in memory.
    """
    dag = population.sketch.dag
    total = 0.0
    for access in (*node.reads, *node.writes):
        buffer = dag.buffer[access.buffer]
        last = access.indices[-1].axes if access.indices else frozenset()
        apart = neighbours is not None and neighbours in access.axes and neighbours not in last
        total += buffer.num_bytes * (SECTOR_BYTES / buffer.item_bytes if apart else 1.0)
    return total


def row_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the seconds of a kernel whose blocks compute a few rows each, with threads along the rows."""
    speeds, gpu = GpuSpeeds.of(parameters), _gpu_of(parameters)
    dag = population.sketch.dag
    node = dag.node[stage.node]
    threads, rows = (population.chosen(stage.node, kind) for kind in ("threads", "rows"))
    blocks = np.ceil(extent_of(node, stage.rows) / rows)
    resident = np.clip(gpu.resident_threads // (threads * rows), 1, gpu.resident_blocks)
    rounds = np.ceil(blocks / (resident * parameters.cores))
    members = [node, *(dag.node[s.node] for s in population.sketch.stages if s.compute_at == stage.node)]
    combine = COMBINE_INSTRUCTIONS * parameters.speeds.latency_cycles * np.ceil(np.log2(threads))
    wait, traffic = np.zeros(len(population)), 0.0
    for member in members:
        beside = [axis for axis in node.spatial if axis not in stage.rows]
        along: Ints = -(-extent_of(member, member.reduction or beside) // threads)
        if stage.in_registers:
            wait = wait + parameters.speeds.latency_cycles * along + (combine if member.reduction else 0)
        else:
            wait = wait + speeds.load_cycles * (1 + along / 4) + combine
            traffic += _traffic(population, member, len(member.axes) - 1 if member.axes else None)
    if stage.in_registers:
        kept = row_registers(population.sketch, stage)
        vectors = kept.length / threads / population.chosen(stage.node, "lanes")
        # The row and what the last node reads beside it.
        wait = wait + 2 * speeds.load_cycles * (1 + vectors / LOADS_IN_FLIGHT)
        moved = {*kept.operands, *(access.buffer for access in (*node.reads, *node.writes))}
        written = {write.buffer for member in members[1:] for write in member.writes}
        traffic = float(sum(dag.buffer[name].num_bytes for name in moved - written))
    memory = (
        traffic / speeds.memory_bytes / parameters.cores / balance_of(blocks / resident, parameters.cores)
    )
    return np.asarray(np.maximum(rounds * wait, memory) / speeds.hertz + speeds.launch_s)


def _gpu_of(parameters: CostParameters) -> Gpu:
    assert parameters.device.gpu is not None, "estimates of GPU programs are for GPUs"
    return parameters.device.gpu
