"""The possible compute locations of a nest: standalone, inlined, or inside its consumer's loops.

The consumer is the nest that reads it. A location counts the consumer's loops from the outside: tile levels
of a tiled consumer, axes of a nest. 0 is a standalone nest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from search.dag import AxisKind, BufferAccess, Dag, Node
from search.sketches.stage import Stage, StageKind

Stages = Mapping[str, Stage]


def readers(dag: Dag, stages: Stages, node: Node) -> tuple[Node, ...]:
    """Return the nodes that read `node`'s results after inlining, each once, in the dag's order."""

    def names(read: Node) -> Iterator[str]:
        for consumer in dag.consumers(read):
            if stages[consumer.name].kind is StageKind.INLINE:
                yield from names(consumer)
            else:
                yield consumer.name

    found = set(names(node))
    return tuple(reader for reader in dag.nodes if reader.name in found)


def compute_at_of(dag: Dag, stages: Stages, node: Node) -> Node | None:
    """Return the consumer inside whose loops `node` may be computed: the only reader if that is tiled, or the
    nest in which all readers may be computed.
    """
    stage = stages.get(node.name)
    if dag.is_output(node) or (stage is not None and stage.rfactor.has_own_nest):
        return None
    reading = readers(dag, stages, node)
    if len(reading) == 1 and stages[reading[0].name].kind is StageKind.TILED:
        return None if node.reduction else reading[0]
    nests = {_nest_of(dag, stages, reader) for reader in reading}
    return dag.node[name] if len(nests) == 1 and (name := nests.pop()) else None


def possible_depths(dag: Dag, stages: Stages, node: Node) -> tuple[int, ...]:
    """Return the numbers of its consumer's loops inside which `node` may be computed, ascending.

    There are none if several nests read it.

    In a tiled consumer they end with its outermost reduction level. In a nest they are outer axes that the
    node shares, so that nothing is computed twice.
    """
    compute_at = compute_at_of(dag, stages, node)
    if compute_at is None:
        return ()
    structure = stages[compute_at.name].structure
    if structure:
        return tuple(range(1, structure.index("R") + int(structure.count("R") > 1) + 1))
    shared = set(aligned_axes(dag, compute_at, node).values())
    possible = []
    for depth, axis in enumerate(compute_at.axes, start=1):
        is_outer = axis.kind is AxisKind.SPATIAL and depth - 1 != compute_at.vector_axis
        if not is_outer or (axis.extent > 1 and depth - 1 not in shared):
            break
        if axis.extent > 1:
            possible.append(depth)
    return tuple(possible)


def can_inline(dag: Dag, node: Node) -> bool:
    return not (node.reduction or node.extra_writes or dag.is_output(node))


def _nest_of(dag: Dag, stages: Stages, node: Node) -> str | None:
    """Return the nest in which `node` is or may be computed; None for partial results, which have their own
    nest.
    """
    if stages[node.name].kind is not StageKind.NEST or stages[node.name].rfactor.has_own_nest:
        return None
    outer = compute_at_of(dag, stages, node)
    if outer is None:
        return node.name
    return outer.name if stages[outer.name].kind is StageKind.NEST else None


def aligned_axes(dag: Dag, outer: Node, node: Node) -> dict[int, int]:
    """Map axes of `node` to the axes of `outer` that they move with, in all reads of it, through other nodes
    too."""
    if node is outer:
        return {axis: axis for axis in node.spatial}
    maps: list[set[tuple[int, int]]] = []
    for consumer in dag.consumers(node):
        onward = aligned_axes(dag, outer, consumer)
        for write, read in product(node.writes, consumer.reads):
            if read.buffer == write.buffer:
                maps.append(_aligned_by(write, read, onward))
    return dict(set.intersection(*maps)) if maps else {}


def _aligned_by(write: BufferAccess, read: BufferAccess, onward: Mapping[int, int]) -> set[tuple[int, int]]:
    """Return the pairs of axes that one read aligns; `onward` maps the reader's axes to the consumer's."""
    found = set()
    for own, index in zip(write.indices, read.indices, strict=True):
        exact = own.is_single_axis and index.is_single_axis and index.offset == 0
        if exact and own.terms and index.terms and index.terms[0].axis in onward:
            found.add((own.terms[0].axis, onward[index.terms[0].axis]))
    return found
