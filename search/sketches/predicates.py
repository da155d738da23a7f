"""The derivation rules' predicates on nodes and accesses (paper table 1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from search.dag import BufferAccess, Dag, Node


def is_strictly_inlineable(node: Node) -> bool:
    """Return whether a node is cheap enough to recompute at every read. Its loads are at axes plus constants,
    in the order of the axes, each axis at most once; or in tables of one dimension. It has no expensive
    calls. It has branches only if it reads nothing, because unrolling removes these.
    """
    if node.reduction or node.extra_writes or node.is_expensive or (node.has_branch and node.reads):
        return False
    for read in node.reads:
        if len(read.indices) == 1 and not read.indices[0].affine:
            continue
        axes = [index.terms[0].axis for index in read.indices if index.terms]
        if not all(index.is_single_axis for index in read.indices) or axes != sorted(set(axes)):
            return False
    return True


def needs_tiling(node: Node) -> bool:
    """Return whether a reduction reuses data: some input is read again for every value of an output axis.

    The paper's rule also tiles nodes without a reduction. But these reread only a vector or two, which stay
    in the caches with any loops.
    """
    if not is_tileable(node) or not all(i.affine for read in node.reads for i in read.indices):
        return False
    long = [axis for axis in node.spatial if node.axes[axis].extent > 1]
    return any(axis not in read.axes for read in node.reads for axis in long)


def is_tileable(node: Node) -> bool:
    """Return whether a node has parallel loops around a reduction with one result."""
    return bool(node.spatial and node.reduction and not node.extra_writes)


def writes_boxes(node: Node) -> bool:
    """Return whether every tile of the axes writes a box of the result that no other tile writes to.

    Otherwise an epilogue, which reads a box, would read values before other tiles write them.
    """
    return all(index.is_single_axis for index in node.write.indices)


def reduces_rows(node: Node) -> bool:
    """Return whether the last reduction runs along an operand's rows, so that partial results can fill
    vectors.
    """
    if not node.reduction:
        return False
    rows = [read.indices[-1] for read in node.reads if read.indices]
    return any(row.is_single_axis and row.axes == {node.reduction[-1]} for row in rows)


def is_permutation(dag: Dag, node: Node, read: BufferAccess) -> bool:
    """Return whether an access runs over its whole buffer once, with one axis for each dimension."""
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


def is_strided(access: BufferAccess, axis: int | None) -> bool:
    """Return whether neighbouring iterations of an axis access elements that aren't adjacent in memory."""
    if axis is None or not access.indices or axis not in access.axes:
        return False
    *outer, last = access.indices
    return not (last.is_single_axis and last.axes == {axis}) or any(axis in index.axes for index in outer)


def is_strided_when_fused(dag: Dag, node: Node, access: BufferAccess, axes: Sequence[int]) -> bool:
    """Return whether the elements that neighbouring iterations of fused loops (`axes`, innermost first)
    access are not adjacent in memory.
    """
    if len(axes) == 1 or not access.axes.intersection(axes):
        return any(is_strided(access, axis) for axis in axes)
    shape = dag.buffer[access.buffer].shape
    inner = [*zip(reversed(access.indices), reversed(shape), axes, strict=False)]
    follow_rows = all(index.is_single_axis and index.axes == {axis} for index, _, axis in inner)
    fill_rows = all(node.axes[axis].extent == size for _, size, axis in inner[:-1])
    return len(inner) < len(axes) or not (follow_rows and fill_rows)


def is_arranged(dag: Dag, node: Node, read: BufferAccess) -> bool:
    """Return whether copying an operand into the order of the loops makes its vectors contiguous."""
    return is_strided(read, node.vector_axis) and is_permutation(dag, node, read)


def elementwise_consumer(dag: Dag, node: Node, inlined: Collection[str]) -> Node | None:
    """Return the elementwise node that consumes `node`, directly or through inlined nodes.

        m[i] += ...;  a[i] = m[i] + b;  y[i] = a[i] * erf(a[i])    # a is inlined: y consumes m

    None unless only this node reads the value in the end, all nodes on the way have its output shape, and
    each reads at its own position.
    """
    if not writes_boxes(node):
        return None
    shape = dag.buffer[node.write.buffer].shape
    on_the_way, found = {node.write.buffer}, None
    for reader in dag.nodes:
        reads = [read for read in reader.reads if read.buffer in on_the_way]
        if not reads:
            continue
        same_shape = dag.buffer[reader.write.buffer].shape == shape
        if reader.reduction or not same_shape or not all(_same_position(reader, read) for read in reads):
            return None
        if reader.name in inlined:
            on_the_way.add(reader.write.buffer)
        elif found is None:
            found = reader
        else:
            return None
    return found


def _same_position(reader: Node, read: BufferAccess) -> bool:
    """Return whether a node reads where it writes."""
    for index, own in zip(read.indices, reader.write.indices, strict=True):
        if not index.is_single_axis or index.offset != 0:
            return False
        # An axis of extent 1 may be read as the constant 0.
        is_one = all(reader.axes[term.axis].extent == 1 for term in (*index.terms, *own.terms))
        if index.terms != own.terms and not is_one:
            return False
    return True
