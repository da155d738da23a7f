"""Which programs a GPU can run, asked of whole populations before anything is lowered, and how random ones
are drawn that it can."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.dag import extent_of
from search.programs.gpu_nest import FETCH, GpuTile
from search.programs.program import Population
from search.programs.tensor_tile import TensorTile
from search.sketches.gpu_variables import shared_kind
from search.sketches.stage import Placement, Stage
from search.sketches.tensor_core import SIDE

MAX_VTHREADS = 8
# Beyond it a thread's registers spill, whatever the number of threads.
MAX_ACCUMULATORS = 128
# More fragments of sums in a warp of tensor cores do, too.
MAX_FRAGMENTS = 8
# Statements in the unrolled loops of a tile: more take the compiler seconds.
MAX_UNROLLED = 2048
REDRAWS = 48


def gpu_valid(population: Population) -> NDArray[np.bool_]:
    """[programs]: whether the kernels' threads, registers and shared memory are within its limits."""
    keep = np.ones(len(population), dtype=bool)
    for stage in population.sketch.stages:
        keep &= fits(population, stage)
    return keep


def fits(population: Population, stage: Stage) -> NDArray[np.bool_]:
    """[programs]: whether one stage is within the limits."""
    if stage.placement is Placement.TILED:
        return _tile_fits(population, stage)
    if stage.placement is Placement.TENSOR:
        return _tensors_fit(population, stage)
    if stage.placement is Placement.ROWS:
        return _rows_fit(population, stage)
    return np.ones(len(population), dtype=bool)


def redraw(population: Population, rng: np.random.Generator) -> Population:
    """The stages that don't fit drawn again, a few times: nearly all programs are valid afterwards, and
    those of a stage are as likely as each other."""
    sketch, values = population.sketch, population.values.copy()
    for stage in sketch.stages:
        own = [variable for variable in sketch.variables if variable.node == stage.node]
        for _ in range(REDRAWS):
            rows = np.flatnonzero(~fits(Population(sketch, values), stage))
            if not len(rows):
                break
            for variable in own:
                values[rows, sketch.columns[variable.key]] = variable.draw(len(rows), rng)
    return Population(sketch, values)


def _tile_fits(population: Population, stage: Stage) -> NDArray[np.bool_]:
    gpu = population.sketch.gpu
    assert gpu is not None
    tile = GpuTile.of(population, stage)
    node = tile.nest.node
    least = min(gpu.warp_size, extent_of(node, node.spatial))
    keep = (tile.threads >= least) & (tile.threads <= gpu.max_threads) & (tile.vthreads <= MAX_VTHREADS)
    keep &= tile.shared_bytes <= gpu.shared_bytes
    keep &= tile.accumulators <= MAX_ACCUMULATORS
    for read in node.reads:
        lanes = population.options(stage.node, shared_kind(read.buffer))
        # Vectors over the end of a row would be loaded one by one.
        keep &= tile.keeps_its_shape(read) & (tile.run(read) % lanes == 0)
    # Registers are given out to whole warps.
    warps = -(-tile.threads // gpu.warp_size)
    keep &= warps * gpu.warp_size * tile.registers <= gpu.registers
    steps = tile.nest.inside[FETCH + 1].prod(axis=0)
    unrolled = np.minimum(steps, population.options(stage.node, "unroll")) * tile.vthreads
    return np.asarray(keep & (unrolled <= MAX_UNROLLED))


def _tensors_fit(population: Population, stage: Stage) -> NDArray[np.bool_]:
    gpu = population.sketch.gpu
    assert gpu is not None
    tile = TensorTile.of(population, stage)
    keep = (tile.warps * gpu.warp_size <= gpu.max_threads) & (tile.fragments <= MAX_FRAGMENTS)
    for part in "ijk":
        # No more than half of a tile is padding.
        keep &= (tile.tile(part) == SIDE) | (tile.tile(part) <= 2 * tile.extent(part))
    if tile.product.operand != tile.product.sums:
        # Otherwise TVM puts the results where an operand was, and then minds that its type is another.
        keep &= tile.result_bytes > np.maximum(*tile.operand_bytes)
    return np.asarray(keep & (tile.shared_bytes <= gpu.shared_bytes))


def _rows_fit(population: Population, stage: Stage) -> NDArray[np.bool_]:
    gpu = population.sketch.gpu
    assert gpu is not None
    threads = population.options(stage.node, "threads") * population.options(stage.node, "rows")
    return np.asarray(threads <= gpu.max_threads)
