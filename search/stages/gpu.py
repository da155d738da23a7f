"""The kinds of stages of CUDA GPU programs: kernels, and nodes inside another node's kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from core.device import Gpu
from search.cost.cost_parameters import CostParameters
from search.cost.estimate import Estimate, estimate_stage
from search.cost.gpu_analytic import row_seconds, tensor_seconds, thread_seconds, tiled_terms
from search.cost.gpu_attention import attention_seconds, online_attention_seconds, tensor_attention_seconds
from search.dag import AxisKind, Dag, extent_of
from search.programs.attention_tile import TensorAttentionTile, attention_tile
from search.programs.gpu_nest import FETCH, GpuTile
from search.programs.online_attention_tile import ONLINE_COLUMNS, ONLINE_ROWS, OnlineAttentionTile
from search.programs.program import Population
from search.programs.tensor_tile import TensorTile
from search.programs.validity import is_valid
from search.programs.warpgroup_tile import WarpgroupTile
from search.sketches.factors import Tail
from search.sketches.row_registers import row_registers
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage, StageKind
from search.sketches.tensor_core import SIDE, match_product
from search.sketches.variables import Choice, Split, Variable, fetch_kind
from search.sketches.warpgroups import MAP_BYTES, operand_matrices

UNROLL_STEPS = (0, 16, 64, 512, 1024)
LANES = (1, 2, 4, 8, 16)
ROWS = (1, 2, 4, 8, 16)
# Tiles of tensor cores in units of 16: warps per block, fragments per warp, fragments along k per fetch.
TENSOR_KINDS = ("warps i", "warps j", "fragments i", "fragments j", "fragments k")
TENSOR_TILES = (1, 2, 4)
# The widest load of a thread.
MAX_VECTOR_BYTES = 16
# TVM can't generate guarded loads of more values of eight bits.
MAX_BYTE_LANES = 4
MAX_VTHREADS = 8
# A thread of a row kernel keeps at most this many bytes of rows in registers, a quarter of all registers.
MAX_KEPT_BYTES = 256
# With more accumulators, a thread's registers spill at any number of threads.
MAX_ACCUMULATORS = 128
# With more accumulator fragments per warp, registers spill too.
MAX_FRAGMENTS = 16
# Tiles of warpgroups: groups of a block, columns, and the bytes of the reduction between two fetches.
WARPGROUPS = (1, 2, 4)
WARPGROUP_COLUMNS = (64, 128, 256)
WARPGROUP_DEPTHS = (64, 128)
# The number of an operand's tiles in shared memory: while a block computes with one, it fetches the next
# ones.
STAGES = (1, 2, 3)
# Warpgroups also read the tile before the one that they fetch last.
WARPGROUP_STAGES = (3, 4)
# The warps of an attention's block, the queries of a warp, and the keys of a thread.
ATTENTION_TILES = (1, 2, 4, 8)
# With more statements in a tile's unrolled loops, compilation takes seconds.
MAX_UNROLLED = 2048


class GpuTiled(Stage):
    """A kernel tiled over blocks, virtual threads and threads, with operands fetched into shared memory."""

    kind = StageKind.TILED

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        node = sketch.dag.node[self.node]
        for position, axis in enumerate(node.axes):
            if axis.extent > 1:
                # A partial tile of a reduction would be guarded at every step.
                tail = Tail.ANY if axis.kind is AxisKind.SPATIAL else Tail.NONE
                yield Split(node.name, position, axis.extent, self.structure.count(axis.kind), tail)
        yield Choice("unroll", node.name, UNROLL_STEPS)
        if self.shared:
            yield Choice("stages", node.name, STAGES)
        yield from _fetch_lanes(sketch, self)

    def __str__(self) -> str:
        cache = " in a write cache" if self.cache_write else ""
        shared = f", shared {' '.join(self.shared)}" if self.shared else ""
        fused = f"{self.epilogue or 'copy'} at {self.epilogue_level}"
        return f"tile {self.node} {self.structure}{cache}, {fused}{shared}"


@is_valid.register
def _(stage: GpuTiled, population: Population) -> NDArray[np.bool_]:
    gpu = _gpu_of(population)
    tile = GpuTile.of(population, stage)
    node = tile.nest.node
    least = min(gpu.warp_size, extent_of(node, node.spatial))
    keep = (tile.threads >= least) & (tile.threads <= gpu.max_threads) & (tile.vthreads <= MAX_VTHREADS)
    keep &= tile.shared_bytes <= gpu.shared_bytes
    keep &= (tile.stages == 1) | (tile.stages <= tile.innermost_fetches)
    keep &= tile.accumulators <= MAX_ACCUMULATORS
    for read in node.reads:
        lanes = population.chosen(stage.node, fetch_kind(read.buffer))
        # Vectors that cross the end of a row would be loaded element by element.
        keep &= tile.keeps_its_shape(read) & (tile.run(read) % lanes == 0)
    # Registers are allocated to whole warps.
    warps = -(-tile.threads // gpu.warp_size)
    keep &= warps * gpu.warp_size * tile.registers <= gpu.registers
    steps = tile.nest.inside[FETCH + 1].prod(axis=0)
    unrolled = np.minimum(steps, population.chosen(stage.node, "unroll")) * tile.vthreads
    return np.asarray(keep & (unrolled <= MAX_UNROLLED))


@estimate_stage.register
def _(stage: GpuTiled, population: Population, parameters: CostParameters) -> Estimate:
    terms = tiled_terms(population, stage, parameters)
    return Estimate(terms["node_s"], terms)


class TensorTiled(Stage):
    """A matrix product tiled over blocks and warps, computed by tensor cores."""

    kind = StageKind.TENSOR

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        for kind in TENSOR_KINDS:
            yield Choice(kind, self.node, TENSOR_TILES)
        yield Choice("unroll", self.node, UNROLL_STEPS[:3])
        yield Choice("stages", self.node, STAGES)
        yield from _fetch_lanes(sketch, self)


@is_valid.register
def _(stage: TensorTiled, population: Population) -> NDArray[np.bool_]:
    gpu = _gpu_of(population)
    tile = TensorTile.of(population, stage)
    keep = (tile.warps * gpu.warp_size <= gpu.max_threads) & (tile.fragments <= MAX_FRAGMENTS)
    for part in "ijk":
        # At most half of a tile is padding.
        least = tile.product.depth if part == "k" else SIDE
        keep &= (tile.tile(part) == least) | (tile.tile(part) <= 2 * tile.extent(part))
    keep &= (tile.stages == 1) | (tile.stages <= tile.count("k"))
    if tile.is_narrow:
        # Otherwise TVM reuses an operand's memory for the results, and fails because their types differ.
        keep &= tile.result_bytes > np.maximum(*tile.operand_bytes) * tile.stages
    return np.asarray(keep & (tile.shared_bytes <= gpu.dynamic_shared_bytes))


@estimate_stage.register
def _(stage: TensorTiled, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(tensor_seconds(TensorTile.of(population, stage), parameters))


class WarpgroupTiled(Stage):
    """A matrix product tiled over blocks and warpgroups, computed by tensor cores from shared memory."""

    kind = StageKind.WARPGROUPS

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        yield Choice("warpgroups", self.node, WARPGROUPS)
        yield Choice("columns", self.node, WARPGROUP_COLUMNS)
        node = sketch.dag.node[self.node]
        item = sketch.dag.buffer[node.reads[0].buffer].item_bytes
        yield Choice("depth", self.node, tuple(depth // item for depth in WARPGROUP_DEPTHS))
        yield Choice("stages", self.node, WARPGROUP_STAGES)
        assert sketch.gpu is not None
        product = match_product(sketch.dag, node, sketch.gpu)
        assert product is not None
        has_matrices = operand_matrices(sketch.dag, node, product) is not None
        yield Choice("tensor maps", self.node, (0, 1) if has_matrices else (0,))
        yield from _fetch_lanes(sketch, self)


@is_valid.register
def _(stage: WarpgroupTiled, population: Population) -> NDArray[np.bool_]:
    gpu = _gpu_of(population)
    tile = WarpgroupTile.of(population, stage)
    keep = tile.stages < tile.count("k")
    for part in "ijk":
        # At most half of a tile is padding.
        keep &= tile.tile(part) <= 2 * tile.extent(part)
    keep &= tile.registers <= gpu.registers
    item = population.sketch.dag.buffer[tile.node.reads[0].buffer].item_bytes
    keep &= ~tile.has_maps | (tile.tile("k") * item == MAP_BYTES)
    # Otherwise TVM reuses an operand's memory for the results, and fails because their types differ.
    keep &= tile.result_bytes > np.maximum(*tile.operand_bytes) * tile.stages
    return np.asarray(keep & (tile.shared_bytes <= gpu.dynamic_shared_bytes))


@estimate_stage.register
def _(stage: WarpgroupTiled, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(tensor_seconds(WarpgroupTile.of(population, stage), parameters))


class ThreadKernel(Stage):
    """A kernel whose iterations are distributed over threads. Each thread computes a few results."""

    kind = StageKind.THREADS

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        node, gpu = sketch.dag.node[self.node], sketch.gpu
        assert gpu is not None
        axes = node.looped_spatial
        yield Choice("threads", node.name, _thread_counts(extent_of(node, axes), gpu))
        if node.reduction or node.constant_axes:
            yield Choice("unroll", node.name, UNROLL_STEPS)
        elif axes:
            touched = [access.buffer for access in (*node.reads, *node.writes)]
            yield Choice("lanes", node.name, _lanes(sketch.dag, touched, node.axes[axes[-1]].extent))


@estimate_stage.register
def _(stage: ThreadKernel, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(thread_seconds(population, stage, parameters))


class RowKernel(Stage):
    """A kernel whose blocks compute a few rows each of its node, and of all nodes computed at its loops."""

    kind = StageKind.ROWS

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        node, gpu = sketch.dag.node[self.node], sketch.gpu
        assert gpu is not None
        members = [node, *(sketch.dag.node[s.node] for s in sketch.stages if s.compute_at == node.name)]
        beside = extent_of(node, [axis for axis in node.spatial if axis not in self.rows])
        longest = max(beside, *(extent_of(member, member.reduction) for member in members))
        yield Choice("threads", node.name, _thread_counts(longest, gpu))
        yield Choice("rows", node.name, tuple(rows for rows in ROWS if rows <= extent_of(node, self.rows)))
        if self.in_registers:
            kept = row_registers(sketch, self)
            moved = (*kept.buffers, *(access.buffer for access in (*node.reads, *node.writes)))
            yield Choice("lanes", node.name, _lanes(sketch.dag, moved, kept.length))

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" + (" in registers" if self.in_registers else "")


@is_valid.register
def _(stage: RowKernel, population: Population) -> NDArray[np.bool_]:
    threads = population.chosen(stage.node, "threads")
    keep = threads * population.chosen(stage.node, "rows") <= _gpu_of(population).max_threads
    if stage.in_registers:
        kept, buffers = row_registers(population.sketch, stage), population.sketch.dag.buffer
        together = threads * population.chosen(stage.node, "lanes")
        row_bytes = kept.length * sum(buffers[name].item_bytes for name in kept.buffers)
        keep &= (kept.length % together == 0) & (row_bytes <= MAX_KEPT_BYTES * threads)
    return np.asarray(keep)


@estimate_stage.register
def _(stage: RowKernel, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(row_seconds(population, stage, parameters))


class BlockReduction(Stage):
    """A reduction inside a row kernel, computed by all threads of a block."""

    kind = StageKind.ACROSS

    def __str__(self) -> str:
        return f"{self.kind} {self.node} in {self.compute_at}"


class KeptInRegisters(Stage):
    """An elementwise node inside a row kernel, computed once, with its rows in the threads' registers."""

    kind = StageKind.KEPT

    def __str__(self) -> str:
        return f"{self.kind} {self.node} in {self.compute_at}"


class AttentionKernel(Stage):
    """A kernel that computes a whole attention. Each block keeps the scores of a few queries in shared
    memory. A warp computes `queries` of them, and `keys` of their scores in each of its threads at a time.
    """

    kind = StageKind.ATTENTION

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        yield Choice("warps", self.node, ATTENTION_TILES)
        yield Choice("queries", self.node, ATTENTION_TILES)
        tile = attention_tile(sketch, self)
        yield Choice("keys", self.node, tuple(keys for keys in ATTENTION_TILES[:3] if tile.keys % keys == 0))
        yield Choice("unroll", self.node, UNROLL_STEPS[:3])


@is_valid.register
def _(stage: AttentionKernel, population: Population) -> NDArray[np.bool_]:
    gpu, tile = _gpu_of(population), attention_tile(population.sketch, stage)
    warps, queries, keys = (population.chosen(stage.node, kind) for kind in ("warps", "queries", "keys"))
    accumulators = queries * np.maximum(keys, -(-tile.width // gpu.warp_size))
    keep = tile.shared_bytes(warps * queries) <= gpu.dynamic_shared_bytes
    # At most half of a block is padding.
    keep &= warps * queries < 2 * tile.queries
    return np.asarray(keep & (accumulators <= MAX_ACCUMULATORS))


@estimate_stage.register
def _(stage: AttentionKernel, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(attention_seconds(population, stage, parameters))


class TensorAttention(Stage):
    """A kernel that computes a whole attention, both products on tensor cores. Each block keeps the scores of
    a few tiles of queries in shared memory. While it computes scores, `warps j` and `fragments j` divide the
    keys. While it adds up weighted values, `fragments k` divides the keys.
    """

    kind = StageKind.TENSOR_ATTENTION

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        for kind in TENSOR_KINDS:
            yield Choice(kind, self.node, TENSOR_TILES)
        yield Choice("unroll", self.node, UNROLL_STEPS[:3])
        yield Choice("stages", self.node, STAGES)
        yield from _fetch_lanes(sketch, self)


@is_valid.register
def _(stage: TensorAttention, population: Population) -> NDArray[np.bool_]:
    gpu, tile = _gpu_of(population), TensorAttentionTile.of(population, stage)
    sizes, stages = tile.sizes, tile.chosen("stages")
    keep = (tile.warps * gpu.warp_size <= gpu.max_threads) & (tile.fragments <= MAX_FRAGMENTS)
    # At most half of a tile is padding.
    keep &= (tile.queries == SIDE) | (tile.queries <= 2 * sizes.queries)
    keep &= (tile.columns == SIDE) | (tile.columns <= 2 * sizes.width)
    keep &= tile.keys <= max(2 * sizes.keys, SIDE)
    keep &= tile.weighted <= max(2 * sizes.keys, SIDE)
    keep &= (stages == 1) | (stages <= -(-sizes.keys // np.maximum(tile.keys, tile.weighted)))
    return np.asarray(keep & (tile.shared_bytes <= gpu.dynamic_shared_bytes))


@estimate_stage.register
def _(stage: TensorAttention, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(tensor_attention_seconds(population, stage, parameters))


class OnlineAttention(Stage):
    """A kernel that computes a whole attention with an online softmax, both products on tensor cores or, in
    float32, on the others. Each warp has all scores of its queries for `fragments j` tiles of keys in
    registers at a time.
    """

    kind = StageKind.ONLINE_ATTENTION

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        yield Choice("warps", self.node, ATTENTION_TILES)
        yield Choice("fragments i", self.node, ONLINE_ROWS)
        yield Choice("fragments j", self.node, ONLINE_COLUMNS)
        yield Choice("stages", self.node, STAGES)
        yield Choice("parts", self.node, ATTENTION_TILES)
        yield from _fetch_lanes(sketch, self)


@is_valid.register
def _(stage: OnlineAttention, population: Population) -> NDArray[np.bool_]:
    gpu, tile = _gpu_of(population), OnlineAttentionTile.of(population, stage)
    sizes, stages = tile.sizes, tile.chosen("stages")
    keep = (tile.warps * gpu.warp_size <= gpu.max_threads) & tile.fits_registers(gpu)
    keep &= tile.warps % tile.parts == 0
    # At most half of a tile is padding.
    keep &= (tile.queries == SIDE) | (tile.queries < 2 * sizes.queries)
    keep &= tile.keys <= max(2 * sizes.keys, SIDE)
    keep &= (stages == 1) | (stages <= -(-sizes.keys // tile.keys))
    return np.asarray(keep & (tile.shared_bytes <= gpu.dynamic_shared_bytes))


@estimate_stage.register
def _(stage: OnlineAttention, population: Population, parameters: CostParameters) -> Estimate:
    return Estimate(online_attention_seconds(population, stage, parameters))


class Attended(Stage):
    """A node that an attention's kernel computes."""

    kind = StageKind.ATTENDED


class ThreadLocal(Stage):
    """A node that each thread of its reader computes again."""

    kind = StageKind.LOCAL

    def __str__(self) -> str:
        return f"{self.kind} {self.node} in {self.compute_at}"


def _gpu_of(population: Population) -> Gpu:
    gpu = population.sketch.gpu
    assert gpu is not None
    return gpu


def _fetch_lanes(sketch: Sketch, stage: Stage) -> Iterator[Variable]:
    """Yield a choice of vector widths for every operand that is fetched into shared memory."""
    for name in stage.shared:
        shape = sketch.dag.buffer[name].shape
        touched = _computed_from(sketch, name)
        yield Choice(fetch_kind(name), stage.node, _lanes(sketch.dag, touched, shape[-1] if shape else 1))


def _computed_from(sketch: Sketch, name: str) -> list[str]:
    """Return an operand and the buffers that it is computed from while it is fetched."""
    producer = sketch.dag.producer.get(name)
    if producer is None or sketch.stage[producer.name].kind is not StageKind.INLINE:
        return [name]
    return [name, *(one for read in producer.reads for one in _computed_from(sketch, read.buffer))]


def _thread_counts(extent: int, gpu: Gpu) -> tuple[int, ...]:
    """Return the possible numbers of threads: whole warps, each with work."""
    counts = [gpu.warp_size << doublings for doublings in range(gpu.max_threads.bit_length())]
    return tuple(n for n in counts if n <= gpu.max_threads and (n == gpu.warp_size or n < 2 * extent))


def _lanes(dag: Dag, buffers: Sequence[str], row: int) -> tuple[int, ...]:
    """Return the vector widths that divide a row and that threads can move at once."""
    widest = max(dag.buffer[name].item_bytes for name in buffers)
    most = min(MAX_VECTOR_BYTES // widest, MAX_BYTE_LANES if widest == 1 else MAX_VECTOR_BYTES)
    return tuple(lanes for lanes in LANES if lanes <= most and row % lanes == 0)
