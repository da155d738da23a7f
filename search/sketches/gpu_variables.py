"""What sketches for GPUs leave open: tiles, threads, rows of a block, vector widths of copies, unrolling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from core.device import Gpu
from search.dag import AxisKind, Dag, Node, extent_of
from search.sketches.factors import Tail
from search.sketches.stage import Placement, Stage
from search.sketches.variables import Choice, Split, Variable

UNROLL_STEPS = (0, 16, 64, 512, 1024)
LANES = (1, 2, 4, 8, 16)
ROWS = (1, 2, 4, 8, 16)
# Tiles of tensor cores, in units of 16: warps of a block, fragments of a warp, fragments along k a fetch.
TENSOR_KINDS = ("warps i", "warps j", "fragments i", "fragments j", "fragments k")
TENSOR_TILES = (1, 2, 4)
# The widest load of a thread.
MAX_VECTOR_BYTES = 16
# TVM writes no guarded loads of more values of eight bits.
MAX_BYTE_LANES = 4


def gpu_variables(dag: Dag, stages: Sequence[Stage], gpu: Gpu) -> Iterator[Variable]:
    for stage in stages:
        node = dag.node[stage.node]
        if stage.placement is Placement.TILED:
            yield from _tile_variables(dag, node, stage)
        elif stage.placement is Placement.TENSOR:
            yield from _tensor_variables(dag, node, stage)
        elif stage.placement is Placement.THREADS:
            yield from _thread_variables(dag, node, gpu)
        elif stage.placement is Placement.ROWS:
            members = [node, *(dag.node[s.node] for s in stages if s.host == node.name)]
            yield from _row_variables(node, stage, members, gpu)


def shared_kind(buffer: str) -> str:
    """The kind of the choice how many values of a buffer a thread fetches at once."""
    return f"lanes {buffer}"


def threaded(node: Node) -> tuple[int, ...]:
    """The axes whose iterations are spread over threads: those over small constant matrices are unrolled."""
    return tuple(axis for axis in node.spatial if axis not in node.constant_axes)


def _tile_variables(dag: Dag, node: Node, stage: Stage) -> Iterator[Variable]:
    for position, axis in enumerate(node.axes):
        if axis.extent > 1:
            # A partial tile of a reduction would be guarded at every step.
            tail = Tail.ANY if axis.kind is AxisKind.SPATIAL else Tail.NONE
            yield Split(node.name, position, axis.extent, stage.structure.count(axis.kind), tail)
    yield Choice("unroll", node.name, UNROLL_STEPS)
    for name in stage.shared:
        shape = dag.buffer[name].shape
        yield Choice(shared_kind(name), node.name, _lanes(dag, [name], shape[-1] if shape else 1))


def _tensor_variables(dag: Dag, node: Node, stage: Stage) -> Iterator[Variable]:
    for kind in TENSOR_KINDS:
        yield Choice(kind, node.name, TENSOR_TILES)
    yield Choice("unroll", node.name, UNROLL_STEPS[:3])
    for name in stage.shared:
        shape = dag.buffer[name].shape
        yield Choice(shared_kind(name), node.name, _lanes(dag, [name], shape[-1] if shape else 1))


def _thread_variables(dag: Dag, node: Node, gpu: Gpu) -> Iterator[Variable]:
    axes = threaded(node)
    yield Choice("threads", node.name, _threads(extent_of(node, axes), gpu))
    if node.reduction or node.constant_axes:
        yield Choice("unroll", node.name, UNROLL_STEPS)
    elif axes:
        touched = [access.buffer for access in (*node.reads, *node.writes)]
        yield Choice("lanes", node.name, _lanes(dag, touched, node.axes[axes[-1]].extent))


def _row_variables(node: Node, stage: Stage, members: Sequence[Node], gpu: Gpu) -> Iterator[Variable]:
    beside = [extent_of(node, [axis for axis in node.spatial if axis not in stage.rows])]
    longest = max(beside + [extent_of(member, member.reduction) for member in members])
    yield Choice("threads", node.name, _threads(longest, gpu))
    yield Choice("rows", node.name, tuple(rows for rows in ROWS if rows <= extent_of(node, stage.rows)))


def _threads(extent: int, gpu: Gpu) -> tuple[int, ...]:
    """Whole warps, no more than have something to do."""
    counts = [gpu.warp_size << doublings for doublings in range(gpu.max_threads.bit_length())]
    return tuple(n for n in counts if n <= gpu.max_threads and (n == gpu.warp_size or n < 2 * extent))


def _lanes(dag: Dag, buffers: Sequence[str], row: int) -> tuple[int, ...]:
    """Vector widths that divide a row and that threads can move at once."""
    widest = max(dag.buffer[name].item_bytes for name in buffers)
    most = min(MAX_VECTOR_BYTES // widest, MAX_BYTE_LANES if widest == 1 else MAX_VECTOR_BYTES)
    return tuple(lanes for lanes in LANES if lanes <= most and row % lanes == 0)
