"""A schedule of loops alone, which records the trace of TVM's schedule in a tenth of the time.

TVM's schedule transforms the loops, blocks and regions of a workload by every primitive. But a trace holds
only the names of loops and blocks, and lowering asks only for their extents.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tvm.s_tir import Schedule
from tvm.tirx import FloorMod, IntImm, Var

from compiler.lowering.cpu.packed_index import index_map_text
from compiler.lowering.primitives import Primitives
from compiler.reading.subgraph import read_dag
from search.dag import AxisKind, Dag, Index, Node
from search.programs.program import Program
from search.sketches.stage import Rfactor, StageKind

KINDS = frozenset(
    (
        *(StageKind.INLINE, StageKind.TILED, StageKind.FUSED),
        *(StageKind.NEST, StageKind.UNROLLED, StageKind.BLOCKS),
    )
)


class UnknownLoops(Exception):
    """Only TVM's schedule knows the loops that a primitive makes. The message names the reason."""


@dataclass(eq=False)
class Loop:
    """A loop of `extent` iterations over an `axis` of its block's node; None over several axes. `parts` are
    the loops that were fused to it.
    """

    extent: int
    axis: int | None
    kind: AxisKind
    parts: tuple[Loop, ...] = ()


@dataclass(eq=False)
class LoopName:
    """What a trace calls a loop. TVM names a loop again whenever it is asked for."""

    text: str
    loop: Loop


@dataclass(frozen=True)
class BlockFacts:
    """A block before it is scheduled.

    axes        the extents and kinds of its loops
    reads       the buffers that it reads, in the order of TVM's block; None for one without a name
    node        its node in the dag of the inlined workload; None for a copy
    item_bytes  bytes of an element of its result
    index_type  the type of its loops
    moduli      the modulus where a buffer is read at the remainder of an axis, by buffer and dimension
    """

    axes: tuple[tuple[int, AxisKind], ...]
    reads: tuple[str | None, ...]
    node: Node | None
    item_bytes: int
    index_type: str
    moduli: Mapping[tuple[str, int], int]


@dataclass(eq=False)
class Block:
    """A block and the loops around it, outermost first. They are None once they were partitioned."""

    facts: BlockFacts
    reads: list[str | None]
    loops: list[Loop] | None

    @classmethod
    def alone(cls, facts: BlockFacts) -> Block:
        loops = [Loop(extent, axis, kind) for axis, (extent, kind) in enumerate(facts.axes)]
        return cls(facts, list(facts.reads), loops)


@dataclass(eq=False)
class BlockName:
    """What a trace calls a block."""

    text: str
    block: Block


@dataclass(frozen=True)
class Beginning:
    """A workload that has inlined some nodes: the instructions so far, the number of names that they define,
    the dag of what is left, and its blocks.
    """

    instructions: tuple[Any, ...]
    names: int
    dag: Dag
    blocks: dict[str, BlockFacts]

    @classmethod
    def of(cls, schedule: Schedule, trace: str) -> Beginning:
        """Read a schedule that has only inlined nodes, and its trace. Raises UnsupportedSubgraph if the
        search can't represent what is left, and UnknownLoops if blocks don't run over their loops one to one.
        """
        instructions, _ = json.loads(trace)
        dag = read_dag(schedule.mod)
        blocks = {node.name: _facts(schedule, dag, node) for node in dag.nodes}
        return cls(tuple(instructions), sum(len(one[3]) for one in instructions), dag, blocks)


def _facts(schedule: Schedule, dag: Dag, node: Node) -> BlockFacts:
    name = schedule.get_sblock(node.name)
    block = schedule.get(name)
    axes = tuple((axis.extent, axis.kind) for axis in node.axes)
    extents = [int(variable.dom.extent) for variable in block.iter_vars]
    if extents != [extent for extent, _ in axes] or node.extra_writes:
        raise UnknownLoops(f"{node.name} doesn't run over its loops one to one")
    if any(not index.is_single_axis or index.offset for index in node.write.indices):
        raise UnknownLoops(f"{node.name} doesn't write at its axes")
    reads = tuple(str(read.source.name) for read in block.reads)
    if len({*reads}) < len(reads) or not {*reads} <= dag.buffer.keys():
        raise UnknownLoops(f"{node.name} reads buffers of one name")
    index_type = str(block.iter_vars[0].var.ty) if axes else ""
    item_bytes = dag.buffer[node.write.buffer].item_bytes
    return BlockFacts(axes, reads, node, item_bytes, index_type, _moduli(block))


def _moduli(block: Any) -> dict[tuple[str, int], int]:
    found = {}
    for read in block.reads:
        for dimension, region in enumerate(read.region):
            index = region.min
            is_remainder = isinstance(index, FloorMod) and isinstance(index.a, Var)
            if is_remainder and isinstance(index.b, IntImm) and int(region.extent) == 1:
                found[str(read.source.name), dimension] = int(index.b)
    return found


def covers(program: Program) -> bool:
    """Return whether a program of a CPU has only stages whose loops are known."""
    return all(
        stage.kind in KINDS and not stage.intrinsic and stage.rfactor is Rfactor.NONE
        for stage in program.sketch.stages
    )


class LoopPrimitives(Primitives):
    """Helpers on a `LoopSchedule`."""

    def extent(self, loop: LoopName) -> int:
        return loop.loop.extent

    def is_fixed(self, loop: LoopName) -> bool:
        return True

    def lanes(self, block: BlockName) -> int:
        return self.vector_bytes // block.block.facts.item_bytes

    def operand(self, block: BlockName, name: str) -> int | None:
        reads = block.block.reads
        return reads.index(name) if name in reads else None

    def peel_later(self, block: BlockName, loop: LoopName, width: int, tile: int) -> None:
        raise UnknownLoops("a partial tile is peeled")


class LoopSchedule:
    """The primitives of TVM's schedule that lowering uses on CPUs.

    They raise UnknownLoops where only TVM knows the loops.
    """

    def __init__(self, beginning: Beginning) -> None:
        self._instructions = list(beginning.instructions)
        self._names = beginning.names
        self._dag = beginning.dag
        self._blocks = {name: Block.alone(facts) for name, facts in beginning.blocks.items()}
        self._scheduled = list(self._blocks.values())

    def trace(self) -> str:
        return json.dumps([self._instructions, []], separators=(",", ":"))

    def get_sblock(self, name: str) -> BlockName:
        [text] = self._record("GetSBlock", [], [name, "main"], "b")
        return BlockName(text, self._blocks[name])

    def get_loops(self, block: BlockName) -> list[LoopName]:
        loops = self._loops(block.block)
        names = self._record("GetLoops", [block.text], [], "l", len(loops))
        return [LoopName(text, loop) for text, loop in zip(names, loops, strict=True)]

    def split(self, loop: LoopName, factors: Sequence[int]) -> list[LoopName]:
        split = loop.loop
        if math.prod(factors) != split.extent:
            raise UnknownLoops("a tile is partial")
        loops = [Loop(factor, split.axis, split.kind) for factor in factors]
        self._replace([split], loops)
        names = self._record("Split", [loop.text, *factors], [True, False], "l", len(loops))
        return [LoopName(text, one) for text, one in zip(names, loops, strict=True)]

    def fuse(self, *loops: LoopName) -> LoopName:
        fused = [each.loop for each in loops]
        axis = fused[0].axis if len({one.axis for one in fused}) == 1 else None
        made = Loop(math.prod(one.extent for one in fused), axis, fused[0].kind, tuple(fused))
        self._replace(fused, [made])
        [text] = self._record("Fuse", [each.text for each in loops], [1], "l")
        return LoopName(text, made)

    def reorder(self, *loops: LoopName) -> None:
        ordered = [each.loop for each in loops]
        moved = set(map(id, ordered))
        for block in self._scheduled:
            if block.loops is None:
                continue
            places = [place for place, loop in enumerate(block.loops) if id(loop) in moved]
            if len(places) == len(ordered):
                for place, loop in zip(places, ordered, strict=True):
                    block.loops[place] = loop
            elif places:
                self._unknown("loops around several blocks are reordered")
        self._record("Reorder", [each.text for each in loops], [])

    def parallel(self, loop: LoopName) -> None:
        self._record("Parallel", [loop.text], [])

    def vectorize(self, loop: LoopName) -> None:
        self._record("Vectorize", [loop.text], [])

    def unroll(self, loop: LoopName) -> None:
        self._record("Unroll", [loop.text], [])

    def annotate(self, place: BlockName | LoopName, key: str, value: int) -> None:
        self._record("Annotate", [place.text, value], [key])

    def cache_read(self, block: BlockName, index: int, scope: str) -> BlockName:
        reader = block.block
        name = reader.reads[index]
        if name is None:
            self._unknown("a copy is copied")
        buffer = self._dag.buffer[name]
        reader.reads[index] = None
        facts = replace(
            reader.facts,
            axes=tuple((size, AxisKind.SPATIAL) for size in buffer.shape),
            reads=(name,),
            node=None,
            item_bytes=buffer.item_bytes,
        )
        copy = Copy(facts, list(facts.reads), None, reader, name)
        copy.loops = Block.alone(facts).loops
        self._scheduled.append(copy)
        [text] = self._record("CacheRead", [block.text, []], [index, scope], "b")
        return BlockName(text, copy)

    def cache_write(self, block: BlockName, index: int, scope: str) -> BlockName:
        writer = block.block
        assert writer.facts.node is not None
        buffer = self._dag.buffer[writer.facts.node.write.buffer]
        facts = replace(
            writer.facts, axes=tuple((size, AxisKind.SPATIAL) for size in buffer.shape), reads=(), node=None
        )
        copy = Block.alone(facts)
        self._scheduled.append(copy)
        [text] = self._record("CacheWrite", [block.text, []], [index, scope], "b")
        return BlockName(text, copy)

    def transform_layout(
        self,
        block: BlockName,
        buffer: tuple[str, int],
        index_map: Callable[..., Any],
        pad_value: float | None = None,
    ) -> None:
        kind, index = buffer
        if kind != "read" or pad_value is not None:
            self._unknown("a result or a padded operand gets another layout")
        assert block.block.facts.node is not None
        read = block.block.facts.reads[index]
        assert read is not None
        text = index_map_text(index_map, len(self._dag.buffer[read].shape), block.block.facts.index_type)
        self._record("TransformLayout", [block.text, text], [index, 0, None, 0])

    def decompose_reduction(self, block: BlockName, loop: LoopName) -> BlockName:
        loops = self._loops(block.block)
        at = loops.index(loop.loop)
        own = [Loop(one.extent, one.axis, one.kind) for one in loops[at:] if one.kind is AxisKind.SPATIAL]
        init = Block(replace(block.block.facts, reads=()), [], [*loops[:at], *own])
        self._scheduled.append(init)
        [text] = self._record("DecomposeReduction", [block.text, loop.text], [], "b")
        return BlockName(text, init)

    def loop_partition(self, loop: LoopName, parts: Sequence[int | None]) -> list[LoopName]:
        extents = [part for part in parts if part is not None]
        extents.append(loop.loop.extent - sum(extents))
        for block in self._scheduled:
            if block.loops is not None and loop.loop in block.loops:
                block.loops = None
        factors = ["None" if part is None else part for part in parts]
        names = self._record("LoopPartition", [loop.text, *factors], [1], "l", len(extents))
        return [
            LoopName(text, replace(loop.loop, extent=extent, parts=()))
            for text, extent in zip(names, extents, strict=True)
        ]

    def compute_at(self, block: BlockName, loop: LoopName, preserve_unit_loops: bool) -> None:
        moved = block.block
        if isinstance(moved, Copy):
            sizes = self._touched(moved.buffer, [moved.reader], loop.loop)
        else:
            sizes = self._needed(moved, loop.loop)
        self._move(moved, loop.loop, sizes)
        self._record("ComputeAt", [block.text, loop.text], [1, -1])

    def reverse_compute_at(self, block: BlockName, loop: LoopName, preserve_unit_loops: bool) -> None:
        moved = block.block
        (tile,) = (one for one in self._scheduled if one.facts.node and one.loops and loop.loop in one.loops)
        assert tile.facts.node is not None
        inside = self._inside(tile, loop.loop)
        written = [
            inside[index.terms[0].axis] if index.terms else 1 for index in tile.facts.node.write.indices
        ]
        if moved.facts.node is None:
            sizes = written
        else:
            sizes = [1] * len(moved.facts.axes)
            for size, index in zip(written, moved.facts.node.write.indices, strict=True):
                if index.terms:
                    sizes[index.terms[0].axis] = size
        self._move(moved, loop.loop, sizes)
        self._record("ReverseComputeAt", [block.text, loop.text], [1, -1])

    def _move(self, block: Block, target: Loop, sizes: Sequence[int]) -> None:
        around = next(
            one.loops[: one.loops.index(target) + 1]
            for one in self._scheduled
            if one is not block and one.loops is not None and target in one.loops
        )
        own = [
            Loop(size, axis, kind)
            for axis, (size, (_, kind)) in enumerate(zip(sizes, block.facts.axes, strict=True))
        ]
        block.loops = [*around, *own]

    def _needed(self, block: Block, target: Loop) -> list[int]:
        """Return the extents of a producer's loops inside the loop of its consumers."""
        node = block.facts.node
        assert node is not None
        readers = [
            one
            for one in self._scheduled
            if one.facts.node is not None
            and one.facts.reads
            and any(read.buffer == node.write.buffer for read in one.facts.node.reads)
        ]
        touched = self._touched(node.write.buffer, readers, target)
        sizes = [extent if kind is AxisKind.REDUCTION else 1 for extent, kind in block.facts.axes]
        for size, index in zip(touched, node.write.indices, strict=True):
            if index.terms:
                sizes[index.terms[0].axis] = size
        return sizes

    def _touched(self, buffer: str, readers: Sequence[Block], target: Loop) -> list[int]:
        """Return the extents of the part of a buffer that an iteration of a loop reads."""
        found = {tuple(self._spans(reader, buffer, self._inside(reader, target))) for reader in readers}
        if len(found) != 1:
            self._unknown("several parts of a buffer are read")
        return list(found.pop())

    def _spans(self, reader: Block, buffer: str, inside: Sequence[int]) -> Iterator[int]:
        """Yield the elements of each dimension between the first and the last one that a reader touches."""
        node, facts = reader.facts.node, reader.facts
        assert node is not None
        shape = self._dag.buffer[buffer].shape
        reads = [read.indices for read in node.reads if read.buffer == buffer]
        for dimension, (size, indices) in enumerate(zip(shape, zip(*reads, strict=True), strict=True)):
            if len({(index.terms, index.affine) for index in indices}) > 1:
                self._unknown("several parts of a buffer are read")
            if not indices[0].affine:
                yield self._remainders(indices, inside, facts.moduli.get((buffer, dimension), 0))
                continue
            offsets = [index.offset for index in indices]
            span = max(self._span(node, index, inside, size) for index in set(indices))
            yield span + max(offsets) - min(offsets)

    def _remainders(self, indices: Sequence[Index], inside: Sequence[int], modulus: int) -> int:
        """Return the elements of a dimension that indices of the form `axis % modulus` touch: as many as the
        modulus.
        """
        axes = {term.axis for index in indices for term in index.terms}
        if not modulus or len(axes) != 1 or inside[axes.pop()] % modulus:
            self._unknown("an index isn't affine")
        return modulus

    def _span(self, node: Node, index: Index, inside: Sequence[int], size: int) -> int:
        """Return the elements of a dimension of `size` elements that an affine index touches."""
        least = most = index.offset
        span = 1
        for axis, coefficient, divisor in index.terms:
            extent, whole = inside[axis], node.axes[axis].extent
            if divisor > 1 and (len(index.terms) > 1 or (extent % divisor and divisor % extent)):
                self._unknown("a quotient's tiles differ")
            span += abs(coefficient) * (-(-extent // divisor) - 1)
            reach = coefficient * ((whole - 1) // divisor)
            least, most = least + min(reach, 0), most + max(reach, 0)
        if least < 0 or most >= size or span > size:
            self._unknown("an index may be outside of its buffer")
        return span

    def _inside(self, block: Block, target: Loop) -> list[int]:
        """Return the iterations of each axis inside a loop around the block."""
        loops = self._loops(block)
        if target not in loops:
            self._unknown("a reader is outside of the loop")
        inside = [1] * len(block.facts.axes)
        left = loops[loops.index(target) + 1 :]
        while left:
            loop = left.pop()
            if loop.axis is not None:
                inside[loop.axis] *= loop.extent
            elif loop.parts:
                left += loop.parts
            elif loop.extent > 1:
                self._unknown("a fused loop was split")
        return inside

    def _loops(self, block: Block) -> list[Loop]:
        if block.loops is None:
            self._unknown("the loops were partitioned")
        return block.loops

    def _replace(self, old: Sequence[Loop], new: Sequence[Loop]) -> None:
        for block in self._scheduled:
            if block.loops is not None and old[0] in block.loops:
                at = block.loops.index(old[0])
                if block.loops[at : at + len(old)] != [*old]:
                    self._unknown("loops apart are fused")
                block.loops[at : at + len(old)] = new

    def _record(
        self, kind: str, inputs: list[Any], attributes: list[Any], output: str = "", count: int = 1
    ) -> list[str]:
        names = [f"{output}{self._names + number}" for number in range(count)] if output else []
        self._names += len(names)
        self._instructions.append([kind, inputs, attributes, names])
        return names

    def _unknown(self, why: str) -> NoReturn:
        raise UnknownLoops(why)


@dataclass(eq=False)
class Copy(Block):
    """A copy of a `buffer` for its `reader`."""

    reader: Block
    buffer: str
