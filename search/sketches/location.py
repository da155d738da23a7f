"""Where a nest may be computed: by itself, inlined, or inside the loops of the nest that reads it.

Locations are counted in loops of the host from the outside (tile levels of a tiled host, axes of a nest);
0 is a nest of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from search.dag import Access, AxisKind, Dag, Node
from search.sketches.stage import Placement, Stage

Stages = Mapping[str, Stage]


def readers(dag: Dag, stages: Stages, node: Node) -> tuple[Node, ...]:
    """The nodes that read `node`'s results once inlining is done, each once, in the dag's order."""
    found = set(_after_inlining(dag, stages, node))
    return tuple(reader for reader in dag.nodes if reader.name in found)


def host_of(dag: Dag, stages: Stages, node: Node) -> Node | None:
    """The node inside whose loops a nest may be computed: its only reader if that is tiled, or the nest in
    which all of its readers are or may be computed."""
    stage = stages.get(node.name)
    if dag.is_output(node) or (stage is not None and stage.rfactor.stands_apart):
        return None
    reading = readers(dag, stages, node)
    if len(reading) == 1 and stages[reading[0].name].placement is Placement.TILED:
        return None if node.reduction else reading[0]
    hosts = {_nest_of(dag, stages, reader) for reader in reading}
    return dag.node[name] if len(hosts) == 1 and (name := hosts.pop()) else None


def possible_depths(dag: Dag, stages: Stages, node: Node) -> tuple[int, ...]:
    """The numbers of its host's loops inside which `node` may be computed, ascending; empty without a host.

    In a tiled host they end with its outermost reduction level. In a nest they are outer axes that the node
    shares, so that nothing is computed twice.
    """
    found = host_of(dag, stages, node)
    if found is None:
        return ()
    structure = stages[found.name].structure
    if structure:
        return tuple(range(1, structure.index("R") + int(structure.count("R") > 1) + 1))
    shared = set(aligned_axes(dag, found, node).values())
    possible = []
    for depth, axis in enumerate(found.axes, start=1):
        is_outer = axis.kind is AxisKind.SPATIAL and depth - 1 != found.vector_axis
        if not is_outer or (axis.extent > 1 and depth - 1 not in shared):
            break
        if axis.extent > 1:
            possible.append(depth)
    return tuple(possible)


def can_inline(dag: Dag, node: Node) -> bool:
    return not (node.reduction or node.extra_writes or dag.is_output(node))


def _after_inlining(dag: Dag, stages: Stages, node: Node) -> Iterator[str]:
    for consumer in dag.consumers(node):
        if stages[consumer.name].placement is Placement.INLINE:
            yield from _after_inlining(dag, stages, consumer)
        else:
            yield consumer.name


def _nest_of(dag: Dag, stages: Stages, node: Node) -> str | None:
    """The nest that a reader is or may be part of; none where partial results, which stand apart, read."""
    if stages[node.name].placement is not Placement.NEST or stages[node.name].rfactor.stands_apart:
        return None
    outer = host_of(dag, stages, node)
    if outer is None:
        return node.name
    return outer.name if stages[outer.name].placement is Placement.NEST else None


def aligned_axes(dag: Dag, outer: Node, node: Node) -> dict[int, int]:
    """Which axis of `outer` each axis of `node` moves with, in all reads of it, through other nodes too."""
    if node is outer:
        return {axis: axis for axis in node.spatial}
    maps = [
        _through(node, write, read, aligned_axes(dag, outer, consumer))
        for consumer in dag.consumers(node)
        for write in node.writes
        for read in consumer.reads
        if read.buffer == write.buffer
    ]
    return dict(set.intersection(*(set(found.items()) for found in maps))) if maps else {}


def _through(node: Node, write: Access, read: Access, onward: Mapping[int, int]) -> dict[int, int]:
    found = {}
    for own, index in zip(write.indices, read.indices, strict=True):
        exact = own.is_single_axis and index.is_single_axis and index.offset == 0
        if exact and own.terms and index.terms and index.terms[0].axis in onward:
            found[own.terms[0].axis] = onward[index.terms[0].axis]
    return found
