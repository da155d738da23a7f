"""The analytic estimate of programs for GPUs: a roofline for every kernel.

A tiled kernel takes the longest of its multiply-adds, its loads from shared memory, its traffic with global
memory and the latency of its fetches, and a share of the others. Threads, registers and shared memory of a
block limit how many blocks share a multiprocessor. Other kernels move their operands once; each thread or
block waits for one load after another.
"""

from __future__ import annotations

import numpy as np

from core.device import Gpu
from search.cost.machine import Machine, balance_of
from search.dag import Access, Node, extent_of
from search.programs.gpu_nest import FETCH, VTHREAD, GpuTile
from search.programs.nest import Floats, region
from search.programs.program import Population
from search.programs.tensor_tile import TensorTile
from search.sketches.factors import Ints
from search.sketches.stage import Stage
from search.sketches.variables import fetch_kind

CYCLES_PER_S = 1.4e9
LAUNCH_S = 3e-6
# What one multiprocessor does per cycle: multiply-adds, loads from shared memory, bytes from the level-2
# cache and from memory.
FMA_LANES, SHARED_LANES, L2_BYTES, MEMORY_BYTES = 64.0, 32.0, 32.0, 10.0
# Multiply-adds of tensor cores, and the warps that keep them busy.
TENSOR_LANES, TENSOR_WARPS = 512.0, 8.0
# The most that a multiprocessor holds at once.
RESIDENT_THREADS, RESIDENT_BLOCKS, RESIDENT_SHARED_BYTES = 2048, 32, 96 << 10
# Cycles of latency of a load from global memory, and instructions in flight that hide the latency of
# arithmetic.
LOAD_CYCLES, IN_FLIGHT = 500.0, 16.0
# Global memory is read in sectors.
SECTOR_BYTES = 32
# The combination of the partial results of a block's threads.
COMBINE_CYCLES = 100.0
# The share of the shorter of several overlapping times that adds to the longest.
OVERLAP = 0.76


def tiled_terms(population: Population, stage: Stage, machine: Machine) -> dict[str, Floats]:
    """Return the quantities of a tiled kernel, each [programs]; `node_s` is its seconds."""
    gpu = population.sketch.gpu
    assert gpu is not None
    tile = GpuTile.of(population, stage)
    blocks = tile.blocks.astype(np.float64)
    resident = np.minimum(_resident(tile, gpu), np.ceil(blocks / machine.cores))
    warps = np.ceil(tile.threads / gpu.warp_size)
    busy = balance_of(blocks / resident, machine.cores)
    in_flight = resident * warps * np.minimum(tile.accumulators, 4) / IN_FLIGHT
    issue = np.minimum(in_flight, 1.0) * tile.threads / (warps * gpu.warp_size)
    steps = tile.nest.inside[0].prod(axis=0, dtype=np.float64)
    loads = steps / tile.accumulators * _loads(tile) + _fetch_instructions(population, tile)
    moved = _moved_bytes(tile, blocks)
    unique = float(sum(_bytes(tile, access) for access in (*tile.nest.node.reads, tile.nest.node.write)))
    cycles = {
        "compute": steps / FMA_LANES / issue,
        "shared": loads / SHARED_LANES,
        "l2": moved / L2_BYTES,
        "memory": np.minimum(moved, unique) / MEMORY_BYTES,
        "wait": blocks * tile.fetches * LOAD_CYCLES / resident,
    }
    every = np.stack(list(cycles.values())) / CYCLES_PER_S / machine.cores / busy
    longest = every.max(axis=0)
    return {
        "node_s": longest + OVERLAP * (every.sum(axis=0) - longest) / len(every) + LAUNCH_S,
        "compute_s": every[0],
        "cycles": steps,
        "accumulators": tile.accumulators.astype(np.float64),
        "inner_reduction": tile.nest.inside[FETCH + 1][list(tile.nest.node.reduction)].prod(axis=0) * 1.0,
        "loads_per_fma": loads / steps,
        "l2_traffic": moved,
        "memory_traffic": np.minimum(moved, unique),
        "chunks": blocks,
        "balance": busy,
        "threads": tile.threads.astype(np.float64),
        "resident_blocks": resident,
        "shared_bytes": tile.shared_bytes.astype(np.float64),
        "unroll": population.column(stage.node, "unroll").astype(np.float64),
        **{f"trips_{level}": tile.nest.trips(level) * 1.0 for level in range(6)},
    }


def _resident(tile: GpuTile, gpu: Gpu) -> Floats:
    """Return the blocks that one multiprocessor runs at once."""
    limits = [
        RESIDENT_THREADS // tile.threads,
        gpu.registers // (tile.threads * tile.registers),
        RESIDENT_SHARED_BYTES // np.maximum(tile.shared_bytes, 1),
    ]
    return np.clip(np.minimum.reduce(limits), 1, RESIDENT_BLOCKS).astype(np.float64)


def _loads(tile: GpuTile) -> Floats:
    """Return a thread's loads from shared memory for one step of the reduction in all of its results."""
    nest = tile.nest
    own = nest.inside[FETCH] * nest.extents[VTHREAD]
    own[list(nest.node.reduction)] = 1
    shapes = [tile.dag.buffer[read.buffer].shape for read in nest.node.reads]
    return np.sum(
        [
            np.multiply.reduce([np.ones_like(own[0]), *region(read, own, shape)])
            for read, shape in zip(nest.node.reads, shapes, strict=True)
        ],
        axis=0,
        dtype=np.float64,
    )


def _fetch_instructions(population: Population, tile: GpuTile) -> Floats:
    """Return the load instructions that fetch operands from global memory."""
    total = np.zeros(len(population))
    for read in tile.nest.node.reads:
        lanes = population.sketch.choice(tile.nest.node.name, fetch_kind(read.buffer))
        if lanes is not None:
            width = population.chosen(tile.nest.node.name, lanes.kind)
            total = total + tile.blocks * tile.fetches * np.ceil(tile.elements(read) / width)
    return total


def _moved_bytes(tile: GpuTile, blocks: Floats) -> Floats:
    """Return the bytes that all blocks exchange with global memory, in whole sectors."""
    moved = np.full(len(blocks), float(_bytes(tile, tile.nest.node.write)))
    for read in tile.nest.node.reads:
        buffer = tile.dag.buffer[read.buffer]
        run = tile.run(read)
        sectors = np.ceil(run * buffer.item_bytes / SECTOR_BYTES) * SECTOR_BYTES / run
        moved = moved + blocks * tile.fetches * tile.elements(read) * sectors
    return moved


def _bytes(tile: GpuTile, access: Access) -> int:
    return tile.dag.buffer[access.buffer].num_bytes


def tensor_seconds(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return the seconds of a kernel on tensor cores, from its instructions, traffic and latency."""
    tile = TensorTile.of(population, stage)
    item = population.sketch.dag.buffer[tile.node.reads[0].buffer].item_bytes
    blocks, fetches = tile.blocks.astype(np.float64), tile.count("k")
    resident = np.clip(RESIDENT_SHARED_BYTES // tile.shared_bytes, 1, RESIDENT_BLOCKS)
    resident = np.minimum(resident, np.ceil(blocks / machine.cores))
    busy = balance_of(blocks / resident, machine.cores)
    issue = np.minimum(resident * tile.warps / TENSOR_WARPS, 1.0)
    steps = blocks * fetches * tile.tile("i") * tile.tile("j") * tile.tile("k")
    moved = blocks * fetches * (tile.tile("i") + tile.tile("j")) * tile.tile("k") * item
    wait = blocks * fetches * LOAD_CYCLES / resident
    every = np.stack([steps / TENSOR_LANES / issue, moved / L2_BYTES, wait]) / CYCLES_PER_S / machine.cores
    longest = every.max(axis=0)
    return np.asarray((longest + OVERLAP * (every.sum(axis=0) - longest) / len(every)) / busy + LAUNCH_S)


def thread_seconds(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return the seconds of a kernel whose threads compute a few results each."""
    node = population.sketch.dag.node[stage.node]
    axes = node.looped_spatial
    has_lanes = (node.name, "lanes") in population.sketch.columns
    lanes = population.chosen(node.name, "lanes") if has_lanes else np.ones(len(population), dtype=np.int64)
    count = np.ceil(extent_of(node, axes) / lanes)
    threads = population.chosen(node.name, "threads")
    blocks = np.ceil(count / threads)
    resident = np.clip(RESIDENT_THREADS // threads, 1, RESIDENT_BLOCKS)
    rounds = np.ceil(blocks / (resident * machine.cores))
    steps = extent_of(node, node.reduction) * max(extent_of(node, node.constant_axes), 1)
    wait = rounds * LOAD_CYCLES * (1 + steps / 4)
    work = node.iterations * max(node.flops, 1.0) / FMA_LANES / machine.cores
    memory = _traffic(population, node, axes[-1] if axes else None) / MEMORY_BYTES / machine.cores
    return np.asarray(
        np.maximum.reduce([wait, np.full_like(wait, max(work, memory))]) / CYCLES_PER_S + LAUNCH_S
    )


def _traffic(population: Population, node: Node, neighbours: int | None) -> float:
    """Return the bytes that move if neighbouring threads are neighbours along one axis: a whole sector for
    each element if these aren't adjacent in memory."""
    dag = population.sketch.dag
    total = 0.0
    for access in (*node.reads, *node.writes):
        buffer = dag.buffer[access.buffer]
        last = access.indices[-1].axes if access.indices else frozenset()
        apart = neighbours is not None and neighbours in access.axes and neighbours not in last
        total += buffer.num_bytes * (SECTOR_BYTES / buffer.item_bytes if apart else 1.0)
    return total


def row_seconds(population: Population, stage: Stage, machine: Machine) -> Floats:
    """Return the seconds of a kernel whose blocks compute some rows each, their threads along the rows."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    threads, rows = (population.chosen(stage.node, kind) for kind in ("threads", "rows"))
    blocks = np.ceil(extent_of(node, stage.rows) / rows)
    resident = np.clip(RESIDENT_THREADS // (threads * rows), 1, RESIDENT_BLOCKS)
    rounds = np.ceil(blocks / (resident * machine.cores))
    members = [node, *(dag.node[s.node] for s in population.sketch.stages if s.host == stage.node)]
    wait, traffic = np.zeros(len(population)), 0.0
    for member in members:
        beside = [axis for axis in node.spatial if axis not in stage.rows]
        along: Ints = -(-extent_of(member, member.reduction or beside) // threads)
        wait = wait + LOAD_CYCLES * (1 + along / 4) + COMBINE_CYCLES
        traffic += _traffic(population, member, len(member.axes) - 1 if member.axes else None)
    memory = traffic / MEMORY_BYTES / machine.cores / balance_of(blocks / resident, machine.cores)
    return np.asarray(np.maximum(rounds * wait, memory) / CYCLES_PER_S + LAUNCH_S)
