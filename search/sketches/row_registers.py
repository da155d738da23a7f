"""Choose the rows that a GPU's row kernel keeps in its threads' registers, so that it reads memory once.

Of every `threads * lanes` elements of a row, each thread holds `lanes`, which it loads as one vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from search.dag import BufferAccess, Dag, Node, extent_of
from search.sketches.location import Stages, aligned_axes, readers
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage, StageKind


@dataclass(frozen=True)
class RowRegisters:
    """The buffers whose rows a row kernel keeps in registers. Their rows have `length` elements.

    `operands` are fetched from memory. Each maps to the nodes that read it. `computed` are results of nodes
    in the kernel.
    """

    length: int
    operands: Mapping[str, tuple[str, ...]]
    computed: tuple[str, ...]

    @property
    def buffers(self) -> tuple[str, ...]:
        return (*self.operands, *self.computed)


def row_registers(sketch: Sketch, kernel: Stage) -> RowRegisters:
    """Return the buffers that a row kernel keeps in registers.

    It fetches a buffer of another kernel if a reduction or several nodes read it.
    """
    dag, kernel_node = sketch.dag, sketch.dag.node[kernel.node]
    members = [stage for stage in sketch.stages if stage.compute_at == kernel.node or stage is kernel]
    nodes = [dag.node[stage.node] for stage in members]
    length = max(extent_of(node, along_row(dag, kernel_node, kernel.rows, node)) for node in nodes)
    inside = {node.name for node in nodes}
    inlined = {stage.node for stage in sketch.of_kind(StageKind.INLINE)}
    found = {}
    for buffer in dag.buffer:
        producer = dag.producer.get(buffer)
        if producer is not None and producer.name in inside | inlined:
            continue
        final = readers_of_buffer(dag, sketch.stage, buffer)
        reduces = any(dag.node[name].reduction for name in final)
        if not final <= inside or not (reduces or len(final) > 1):
            continue
        direct = _direct_readers(dag, buffer)
        if all(_reads_row(dag, kernel_node, kernel, node, buffer, length) for node in direct):
            found[buffer] = tuple(node.name for node in direct)
    kept = (stage.node for stage in members if stage.kind is StageKind.KEPT)
    computed = tuple(dag.node[name].write.buffer for name in kept)
    return RowRegisters(length, found, computed)


def along_row(dag: Dag, kernel_node: Node, rows: tuple[int, ...], node: Node) -> tuple[int, ...]:
    """Return a node's axes along the rows of the kernel of `kernel_node`, without axes of extent 1."""
    if node.reduction:
        axes = node.reduction
    else:
        aligned = aligned_axes(dag, kernel_node, node)
        axes = tuple(axis for axis in node.spatial if aligned.get(axis) not in rows)
    return tuple(axis for axis in axes if node.axes[axis].extent > 1)


def fills_row(dag: Dag, node: Node, access: BufferAccess, along: tuple[int, ...]) -> bool:
    """Return whether the axes along a row are the indices of a buffer's last dimensions, in order."""
    shape = dag.buffer[access.buffer].shape
    long = [(index, size) for index, size in zip(access.indices, shape, strict=True) if size > 1]
    if not along or len(long) < len(along) or not all(index.affine for index, _ in long):
        return False
    outer, inner = long[: -len(along)], long[-len(along) :]
    runs = all(
        index.is_single_axis and index.offset == 0 and index.axes == {axis} and node.axes[axis].extent == size
        for (index, size), axis in zip(inner, along, strict=True)
    )
    return runs and not any(index.axes & set(along) for index, _ in outer)


def readers_of_buffer(dag: Dag, stages: Stages, buffer: str) -> set[str]:
    """Return the nodes that read a buffer after inlining. Nodes without a stage are left out."""
    found: set[str] = set()
    for node in _direct_readers(dag, buffer):
        if node.name in stages:
            is_inlined = stages[node.name].kind is StageKind.INLINE
            found |= {reader.name for reader in readers(dag, stages, node)} if is_inlined else {node.name}
    return found


def _direct_readers(dag: Dag, buffer: str) -> list[Node]:
    return [node for node in dag.nodes if any(read.buffer == buffer for read in node.reads)]


def _reads_row(dag: Dag, kernel_node: Node, kernel: Stage, node: Node, buffer: str, length: int) -> bool:
    along = along_row(dag, kernel_node, kernel.rows, node)
    reads = (read for read in node.reads if read.buffer == buffer)
    return extent_of(node, along) == length and all(fills_row(dag, node, read, along) for read in reads)
