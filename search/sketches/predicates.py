"""Questions about nodes that decide which derivation rules apply (paper table 1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from search.dag import Access, Dag, Node, Term


def is_strictly_inlineable(node: Node) -> bool:
    """Cheap enough to compute again wherever it is read: every load is at axes plus constants, in the
    order of the axes and each at most once, without branches or expensive calls. Constants always are: their
    branches go away where the axes are unrolled."""
    if node.reduction or node.extra_writes or node.is_expensive or (node.has_branch and node.reads):
        return False
    return all(_reads_in_order(node, read) for read in node.reads)


def needs_tiling(node: Node) -> bool:
    """Whether a reduction reuses data: some input is read again for every value of an output axis.

    Narrower than the paper's rule: what is read again without a reduction is a vector or two, which stays in
    the caches whatever the loops.
    """
    if not is_tileable(node) or not all(i.affine for read in node.reads for i in read.indices):
        return False
    return any(_misses_an_axis(node, read) for read in node.reads)


def is_tileable(node: Node) -> bool:
    """Whether it has both loops to run in parallel and a reduction of one value to keep inside them."""
    return bool(node.spatial and node.reduction and not node.extra_writes)


def writes_boxes(node: Node) -> bool:
    """Whether every tile of its axes writes a box of the result of its own. Otherwise what follows a tile,
    which reads a box, would meet values that other tiles have yet to write."""
    return all(index.is_single_axis for index in node.write.indices)


def reduces_rows(node: Node) -> bool:
    """Whether the last reduction runs along the rows of an operand: its partial results can fill vectors."""
    if not node.reduction:
        return False
    rows = [read.indices[-1] for read in node.reads if read.indices]
    return any(row.is_single_axis and row.axes == {node.reduction[-1]} for row in rows)


def is_permutation(dag: Dag, node: Node, read: Access) -> bool:
    """Whether an access runs over its whole buffer once, one axis a dimension."""
    axes = [index.terms[0].axis for index in read.indices if index.is_single_axis and index.terms]
    shape = dag.buffer[read.buffer].shape
    constants = all(size == 1 for index, size in zip(read.indices, shape, strict=True) if not index.terms)
    whole = all(
        index.is_single_axis
        and index.offset == 0
        and (not index.terms or node.axes[index.terms[0].axis].extent == size)
        for index, size in zip(read.indices, shape, strict=True)
    )
    return whole and constants and len(set(axes)) == len(axes)


def lies_apart(access: Access, axis: int | None) -> bool:
    """Whether neighbours along an axis lie apart in memory."""
    if axis is None or not access.indices or axis not in access.axes:
        return False
    *outer, last = access.indices
    return not (last.is_single_axis and last.axes == {axis}) or any(axis in index.axes for index in outer)


def runs_apart(dag: Dag, node: Node, access: Access, axes: Sequence[int]) -> bool:
    """Whether neighbours along loops fused into one, innermost first, lie apart in memory."""
    if len(axes) == 1 or not access.axes.intersection(axes):
        return any(lies_apart(access, axis) for axis in axes)
    shape = dag.buffer[access.buffer].shape
    inner = [*zip(reversed(access.indices), reversed(shape), axes, strict=False)]
    follow_rows = all(index.is_single_axis and index.axes == {axis} for index, _, axis in inner)
    fill_rows = all(node.axes[axis].extent == size for _, size, axis in inner[:-1])
    return len(inner) < len(axes) or not (follow_rows and fill_rows)


def is_arranged(dag: Dag, node: Node, read: Access) -> bool:
    """Whether copies of an operand have another order than it has itself: that of the loops."""
    return lies_apart(read, node.vector_axis) and is_permutation(dag, node, read)


def elementwise_consumer(dag: Dag, node: Node, inlined: Collection[str]) -> Node | None:
    """Follows `node`'s only reader through inlined nodes to the first one that stays.

    None unless every hop has one reader, the same output shape, and reads the value at its own position.
    """
    if not writes_boxes(node):
        return None
    shape = dag.buffer[node.write.buffer].shape
    current = node
    while True:
        readers = dag.consumers(current)
        if len(readers) != 1:
            return None
        reader = readers[0]
        same_shape = dag.buffer[reader.write.buffer].shape == shape
        if reader.reduction or not same_shape or not _reads_own_position(reader, current.write.buffer):
            return None
        if reader.name not in inlined:
            return reader
        current = reader


def _reads_in_order(node: Node, read: Access) -> bool:
    if not all(index.is_single_axis for index in read.indices):
        return False
    axes = [index.terms[0].axis for index in read.indices if index.terms]
    return axes == sorted(set(axes))


def _misses_an_axis(node: Node, read: Access) -> bool:
    return any(node.axes[axis].extent > 1 and axis not in read.axes for axis in node.spatial)


def _reads_own_position(reader: Node, buffer: str) -> bool:
    # An axis of extent 1 may be read as the constant 0.
    reads = [read for read in reader.reads if read.buffer == buffer]
    return all(
        index.is_single_axis and index.offset == 0 and _is_axis(reader, index.terms, own.terms)
        for read in reads
        for index, own in zip(read.indices, reader.write.indices, strict=True)
    )


def _is_axis(reader: Node, terms: tuple[Term, ...], own: tuple[Term, ...]) -> bool:
    return terms == own or all(reader.axes[term.axis].extent == 1 for term in (*terms, *own))
