"""The computation of one subgraph as a small graph of loop nests over buffers.

A `Node` is one loop nest: a box of axes, one store, and the loads it makes. Indices are affine in the
axes wherever they can be, which is what lets the rest of the search reason with numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class AxisKind(StrEnum):
    SPATIAL = "S"
    REDUCTION = "R"


@dataclass(frozen=True)
class Axis:
    name: str
    extent: int
    kind: AxisKind

    def __post_init__(self) -> None:
        if self.extent < 1:
            raise ValueError(f"axis {self.name} must have a positive extent, not {self.extent}")


@dataclass(frozen=True)
class Index:
    """One dimension of an access: sum of coefficient * axis + offset.

    `terms` pairs a position in the node's axes with its coefficient. An index that is not affine
    (data dependent, a quotient) has `affine=False` and is taken to touch its whole dimension.
    """

    terms: tuple[tuple[int, int], ...]
    offset: int = 0
    affine: bool = True

    @property
    def is_single_axis(self) -> bool:
        """Whether it reads `axis + constant` or a constant."""
        return self.affine and (not self.terms or (len(self.terms) == 1 and self.terms[0][1] == 1))


@dataclass(frozen=True)
class Access:
    buffer: str
    indices: tuple[Index, ...]


class BufferRole(StrEnum):
    INPUT = "input"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


@dataclass(frozen=True)
class Buffer:
    name: str
    shape: tuple[int, ...]
    item_bytes: int
    role: BufferRole

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class Node:
    """One loop nest. `flops` counts the arithmetic of a single iteration; a reduction's accumulator is not
    among its `reads`."""

    name: str
    axes: tuple[Axis, ...]
    write: Access
    reads: tuple[Access, ...]
    flops: float
    has_branch: bool = False
    is_expensive: bool = False

    @property
    def vector_axis(self) -> int | None:
        """The axis whose innermost factor becomes a vector: the one that is contiguous in the result."""
        last = self.write.indices[-1] if self.write.indices else None
        if last is None or not last.is_single_axis or not last.terms:
            return None
        return last.terms[0][0]

    @property
    def spatial(self) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(self.axes) if axis.kind is AxisKind.SPATIAL)

    @property
    def reduction(self) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(self.axes) if axis.kind is AxisKind.REDUCTION)

    @property
    def iterations(self) -> int:
        return math.prod(axis.extent for axis in self.axes)


@dataclass(frozen=True)
class Dag:
    """The nodes of a subgraph, producers before consumers, each with a name of its own.

    Raises ValueError when they are not.
    """

    name: str
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        ready = {b.name for b in self.buffers if b.role is BufferRole.INPUT}
        named: set[str] = set()
        for node in self.nodes:
            if node.name in named:
                raise ValueError(f"two nodes are called {node.name}")
            named.add(node.name)
            missing = {read.buffer for read in node.reads} - ready
            if missing:
                raise ValueError(f"{node.name} reads {sorted(missing)} before they are written")
            if node.write.buffer in ready:
                raise ValueError(f"{node.name} writes {node.write.buffer}, which is already written")
            ready.add(node.write.buffer)

    @cached_property
    def buffer(self) -> Mapping[str, Buffer]:
        return {b.name: b for b in self.buffers}

    @cached_property
    def node(self) -> Mapping[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """The node that writes each buffer that is not an input."""
        return {n.write.buffer: n for n in self.nodes}

    def consumers(self, node: Node) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if any(r.buffer == node.write.buffer for r in n.reads))

    def producers(self, node: Node) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n in {self.producer.get(r.buffer) for r in node.reads})

    @cached_property
    def flops(self) -> float:
        """Arithmetic operations of the whole subgraph."""
        return float(sum(n.flops * n.iterations for n in self.nodes))
