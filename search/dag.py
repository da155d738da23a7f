"""The computation of one subgraph as a small graph of loop nests over buffers.

A `Node` is one loop nest: axes, stores and loads. Indices are affine in the axes if possible, so the rest of
the search is arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

# The greatest magnitude of narrow integers. Sums of two of their products with bytes fit into 16 bits:
# 2 * 255 * 64 = 32,640.
NARROW = 64


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


class Term(NamedTuple):
    """`coefficient * (axis // divisor)`, where `axis` is a position in the node's axes."""

    axis: int
    coefficient: int
    divisor: int = 1


@dataclass(frozen=True)
class Index:
    """One dimension of an access: the sum of its terms and an offset.

    The quotient of a sum is written as the sum of its terms' quotients, which is smaller by at most one per
    term. An index of another form (data dependent, a remainder, a product of axes) has `affine=False`. Its
    terms name the axes that it depends on, and it counts as touching its whole dimension.
    """

    terms: tuple[Term, ...]
    offset: int = 0
    affine: bool = True

    @cached_property
    def is_single_axis(self) -> bool:
        """Whether the index is `axis + constant` or a constant."""
        return self.affine and (not self.terms or (len(self.terms) == 1 and self.terms[0][1:] == (1, 1)))

    @cached_property
    def axes(self) -> frozenset[int]:
        return frozenset(term.axis for term in self.terms)


@dataclass(frozen=True)
class BufferAccess:
    buffer: str
    indices: tuple[Index, ...]

    @cached_property
    def axes(self) -> frozenset[int]:
        """The positions of the axes that any index depends on."""
        return frozenset(axis for index in self.indices for axis in index.axes)


class BufferRole(StrEnum):
    INPUT = "input"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


@dataclass(frozen=True)
class Buffer:
    """An array; `dtype` is one of TVM's, such as "float32" or "bool". A `constant` is an input that can be
    packed into another layout ahead of time. A `narrow` one has only integers from -NARROW to NARROW."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: BufferRole
    constant: bool = False
    narrow: bool = False

    @cached_property
    def item_bytes(self) -> int:
        bits = re.search(r"\d+", self.dtype)
        return (int(bits[0]) + 7) // 8 if bits else 1

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class Node:
    """One loop nest. `flops` counts the arithmetic of a single iteration; a reduction's accumulator is not
    among its `reads`.

    A reduction has a `reducer`: "sum", "prod", "max", "min" or "other". `extra_writes` are the further
    results of a nest that stores several (argmax: position and value). `constant_axes` are the positions of
    axes over small constant matrices, to be unrolled completely. A product of values that are first rounded
    to a shorter type, which no buffer has, `rounds_to` that type: "tf32".
    """

    name: str
    axes: tuple[Axis, ...]
    write: BufferAccess
    reads: tuple[BufferAccess, ...]
    flops: float
    has_branch: bool = False
    is_expensive: bool = False
    reducer: str | None = None
    extra_writes: tuple[BufferAccess, ...] = ()
    constant_axes: tuple[int, ...] = ()
    rounds_to: str = ""

    @property
    def writes(self) -> tuple[BufferAccess, ...]:
        return (self.write, *self.extra_writes)

    @cached_property
    def vector_axis(self) -> int | None:
        """The axis whose innermost factor becomes a vector: the result's contiguous axis."""
        last = self.write.indices[-1] if self.write.indices else None
        if last is None or not last.is_single_axis or not last.terms:
            return None
        return last.terms[0].axis

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(self.axes) if axis.kind is AxisKind.SPATIAL)

    @cached_property
    def reduction(self) -> tuple[int, ...]:
        return tuple(i for i, axis in enumerate(self.axes) if axis.kind is AxisKind.REDUCTION)

    @cached_property
    def distinct_reads(self) -> tuple[BufferAccess, ...]:
        return tuple(dict.fromkeys(self.reads))

    @property
    def looped_spatial(self) -> tuple[int, ...]:
        """The spatial axes with loops. Axes over small constant matrices are unrolled."""
        return tuple(axis for axis in self.spatial if axis not in self.constant_axes)

    @property
    def iterations(self) -> int:
        return math.prod(axis.extent for axis in self.axes)


def extent_of(node: Node, axes: Sequence[int]) -> int:
    """Return the product of the axes' extents."""
    return math.prod(node.axes[axis].extent for axis in axes)


@dataclass(frozen=True)
class Dag:
    """The nodes of a subgraph, producers before consumers.

    Raises ValueError if two nodes have one name, or a buffer is read before or written after it was written.
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
            for write in node.writes:
                if write.buffer in ready:
                    raise ValueError(f"{node.name} writes {write.buffer}, which is already written")
                ready.add(write.buffer)

    @cached_property
    def buffer(self) -> Mapping[str, Buffer]:
        return {b.name: b for b in self.buffers}

    @cached_property
    def node(self) -> Mapping[str, Node]:
        return {n.name: n for n in self.nodes}

    @cached_property
    def producer(self) -> Mapping[str, Node]:
        """Map each buffer to the node that writes it; inputs have none."""
        return {write.buffer: n for n in self.nodes for write in n.writes}

    @property
    def signature(self) -> str:
        """The types and shapes of the inputs and outputs: "float32[1,8], float32[8,4] -> float32[1,4]"."""

        def operands(role: BufferRole) -> str:
            found = (buffer for buffer in self.buffers if buffer.role is role)
            return ", ".join(f"{one.dtype}[{','.join(map(str, one.shape))}]" for one in found)

        return f"{operands(BufferRole.INPUT)} -> {operands(BufferRole.OUTPUT)}"

    @property
    def num_bytes(self) -> int:
        """The bytes of all inputs and outputs, a lower bound on the traffic."""
        return sum(one.num_bytes for one in self.buffers if one.role is not BufferRole.INTERMEDIATE)

    def is_output(self, node: Node) -> bool:
        """Return whether the node writes a result of the subgraph."""
        return any(self.buffer[write.buffer].role is BufferRole.OUTPUT for write in node.writes)

    def consumers(self, node: Node) -> tuple[Node, ...]:
        written = {write.buffer for write in node.writes}
        return tuple(n for n in self.nodes if any(r.buffer in written for r in n.reads))

    def widenings(self, node: Node) -> int:
        """Return the instructions that widen a vector of the node's operands to its results' type: one for
        each shorter operand, and one more from integers to floats.
        """
        result = self.buffer[node.write.buffer]
        operands = {read.buffer: self.buffer[read.buffer] for read in node.reads}
        return sum(
            1 + ("int" in one.dtype and "float" in result.dtype)
            for one in operands.values()
            if one.item_bytes < result.item_bytes and one.dtype != "bool"
        )

    @cached_property
    def flops(self) -> float:
        """Arithmetic operations of the whole subgraph."""
        return float(sum(n.flops * n.iterations for n in self.nodes))

    def __str__(self) -> str:
        """Inputs and outputs, then every node with its axes, its results and its reads."""
        buffers = (
            f"{'constant' if b.constant else b.role} {b.name}: {b.dtype}{list(b.shape)}"
            for b in self.buffers
            if b.role is not BufferRole.INTERMEDIATE
        )
        return "\n".join([*buffers, *map(_node_text, self.nodes)])


def _node_text(node: Node) -> str:
    """For example: matmul(S i=32 j=48, R k=64): matmul[i, j] = sum(a[i, k], b[k, j])"""
    parts = (_axes_text(node, node.spatial), _axes_text(node, node.reduction))
    writes = ", ".join(_access_text(node, write) for write in node.writes)
    reads = ", ".join(_access_text(node, read) for read in node.reads)
    value = f"{node.reducer or ''}({reads})"
    facts = f"{' branch' * node.has_branch}{' expensive' * node.is_expensive}"
    facts += f" in {node.rounds_to}" if node.rounds_to else ""
    return f"{node.name}({', '.join(filter(None, parts))}): {writes} = {value}{facts}"


def _axes_text(node: Node, axes: tuple[int, ...]) -> str:
    named = [f"{node.axes[axis].name}={node.axes[axis].extent}" for axis in axes]
    return " ".join([node.axes[axes[0]].kind, *named]) if axes else ""


def _access_text(node: Node, access: BufferAccess) -> str:
    indices = []
    for index in access.indices:
        if not index.affine:
            indices.append(f"?({', '.join(node.axes[term.axis].name for term in index.terms)})")
            continue
        terms = [_term_text(node, term) for term in index.terms]
        if index.offset or not terms:
            terms.append(str(index.offset))
        indices.append(" + ".join(terms).replace("+ -", "- "))
    return f"{access.buffer}[{', '.join(indices)}]"


def _term_text(node: Node, term: Term) -> str:
    name = node.axes[term.axis].name
    quotient = name if term.divisor == 1 else f"{name}//{term.divisor}"
    if abs(term.coefficient) == 1:
        return quotient if term.coefficient == 1 else f"-{quotient}"
    return f"{term.coefficient}*{quotient}" if term.divisor == 1 else f"{term.coefficient}*({quotient})"
