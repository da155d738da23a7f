"""Winograd's chains of transform, product and inverse transform, computed a block of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

from search.dag import BufferAccess, Dag, Node, extent_of
from search.sketches.factors import divisors
from search.sketches.predicates import is_strictly_inlineable
from search.sketches.row_blocks import RowBlocks
from search.sketches.stage import StageKind

# Blocks of channels have at least one vector.
MIN_CHANNELS = 16
# Blocks are even enough if the cores are busy for this fraction of the time.
MIN_BALANCE = 0.95


def winograd_blocks(dag: Dag, output: Node, cores: int) -> RowBlocks | None:
    """Return the chain that ends at an output; None without one.

        transform[.., p, q, c] -> products[.., p, q, o] -> inverse[p, h, q, w, o] -> output[4 * p + h, ..., o]

    Every node except the output has one reader. The nodes behind the inverse are elementwise or gather tiles,
    and the output's rows are whole tiles.
    """
    if output.reduction or output.extra_writes or output.vector_axis != len(output.axes) - 1:
        return None
    behind = list(_elementwise_behind(dag, output))
    inverse = _only_producer(dag, behind[-1])
    products = _only_producer(dag, inverse) if inverse is not None and inverse.constant_axes else None
    transform = _only_producer(dag, products) if products is not None and products.reduction else None
    if inverse is None or products is None or transform is None or not transform.constant_axes:
        return None
    rows = _rows(transform, products, inverse, behind[-1], output)
    if not rows:
        return None
    channels = _channels(products, inverse, behind[-1], output)
    kinds = {
        **dict.fromkeys((node.name for node in behind[1:]), StageKind.INLINE),
        inverse.name: StageKind.UNROLLED,
        products.name: StageKind.TILED,
        transform.name: StageKind.UNROLLED,
    }
    cuts = _cuts(inverse, rows[inverse.name], channels.get(inverse.name, ()), cores)
    return RowBlocks(kinds, rows, channels, tuple(cuts), is_best=False)


def _cuts(
    inverse: Node, rows: tuple[int, ...], channels: tuple[int, ...], cores: int
) -> Iterator[tuple[int, int]]:
    """Yield the numbers of blocks of rows and of channels that are worth trying.

    Blocks of rows, in each image of a batch: the fewest that give each core one, the most, and one between.
    If the cores can't share them evenly, such as seven rows on two cores, blocks of channels are tried too.
    Each block of channels repeats the transform.
    """
    *images, last = rows
    extent, outer = inverse.axes[last].extent, extent_of(inverse, images)
    enough = [count for count in divisors(extent) if count * outer >= cores] or [extent]
    for count in sorted({enough[0], enough[len(enough) // 2], enough[-1]}):
        yield count, 1
        by_channels = _channel_blocks(extent_of(inverse, channels), count * outer, cores)
        if by_channels > 1:
            yield count, by_channels


def _channel_blocks(extent: int, blocks: int, cores: int) -> int:
    """Return the smallest number of channel blocks with which the cores are busy enough, else the number with
    which they are busiest.
    """
    best = 1
    for count in divisors(extent):
        if extent // count < MIN_CHANNELS or _balance(blocks * best, cores) >= MIN_BALANCE:
            break
        if _balance(blocks * count, cores) > _balance(blocks * best, cores):
            best = count
    return best


def _elementwise_behind(dag: Dag, output: Node) -> Iterator[Node]:
    """Yield the output and the elementwise nodes before it, last first. The last node yielded reads the
    inverse.
    """
    node = output
    while True:
        yield node
        before = _only_producer(dag, node)
        if before is None or before.reduction or before.extra_writes:
            return
        if dag.buffer[before.write.buffer].shape != dag.buffer[output.write.buffer].shape:
            return
        reads = [read.indices for read in node.reads if read.buffer == before.write.buffer]
        if any(indices != node.write.indices for indices in reads):
            return
        node = before


def _only_producer(dag: Dag, node: Node) -> Node | None:
    """Return the node whose results are read, other than elementwise functions of inputs, which are inlined,
    and small constant matrices. None if there are several, or if others read them too.
    """
    found = {
        producer.name: producer
        for read in node.reads
        if (producer := dag.producer.get(read.buffer)) is not None and not _is_inlined(dag, producer)
    }
    if len(found) != 1:
        return None
    (producer,) = found.values()
    return producer if dag.consumers(producer) == (node,) and not dag.is_output(producer) else None


def _is_inlined(dag: Dag, node: Node) -> bool:
    """Return whether a node is a constant, or an elementwise function of inputs."""
    producers = [dag.producer.get(read.buffer) for read in node.reads]
    return not node.reduction and all(
        is_strictly_inlineable(node) and (producer is None or _is_inlined(dag, producer))
        for producer in producers
    )


def _rows(
    transform: Node, products: Node, inverse: Node, gather: Node, output: Node
) -> dict[str, tuple[int, ...]] | None:
    """Return the axes of images and of rows of tiles in each node; None where their tiles don't align."""
    found: list[dict[str, int]] = []
    for axis in inverse.looped_spatial:
        if inverse.axes[axis].extent == 1 or axis == inverse.vector_axis:
            continue
        of_products = _same_axis(inverse, axis, products)
        of_transform = None if of_products is None else _same_axis(products, of_products, transform)
        of_output = _divided_axis(inverse, axis, gather, output)
        if of_products is not None and of_transform is not None and of_output is not None:
            found.append(
                {
                    inverse.name: axis,
                    products.name: of_products,
                    transform.name: of_transform,
                    output.name: of_output,
                }
            )
    # Columns of tiles aren't cut, because a product needs enough pixels.
    rows = found[:-1] or found
    return {name: tuple(each[name] for each in rows) for name in rows[0]} if rows else None


def _channels(products: Node, inverse: Node, gather: Node, output: Node) -> dict[str, tuple[int, ...]]:
    """Return the axes of the results' channels, which are contiguous in all of these nodes; none if they
    don't align."""
    of_inverse, of_products = inverse.vector_axis, products.vector_axis
    if of_inverse is None or of_products is None or output.vector_axis is None:
        return {}
    aligned = _same_axis(gather, gather.vector_axis, inverse) == of_inverse
    if not aligned or _same_axis(inverse, of_inverse, products) != of_products:
        return {}
    return {inverse.name: (of_inverse,), products.name: (of_products,), output.name: (output.vector_axis,)}


def _balance(blocks: int, cores: int) -> float:
    """Return the fraction of their time that cores are busy."""
    return blocks / (-(-blocks // cores) * cores)


def _same_axis(reader: Node, axis: int | None, producer: Node) -> int | None:
    """Return the axis of `producer` at which its reader's `axis` reads it, in every read; None without
    one."""
    reads = [read for read in reader.reads if read.buffer == producer.write.buffer]
    places = {_place(read, axis) for read in reads}
    if len(places) != 1 or (place := places.pop()) is None:
        return None
    own = producer.write.indices[place]
    return own.terms[0].axis if own.is_single_axis and own.offset == 0 and own.terms else None


def _place(read: BufferAccess, axis: int | None) -> int | None:
    """Return the dimension that an axis alone indexes; None if there is none."""
    for place, index in enumerate(read.indices):
        if index.is_single_axis and index.axes == {axis} and index.offset == 0:
            return place
    return None


def _divided_axis(inverse: Node, axis: int, gather: Node, output: Node) -> int | None:
    """Return the output's axis whose quotient by the tile is the inverse's `axis`. None if whole tiles don't
    cover it."""
    place = _place(inverse.write, axis)
    reads = [read for read in gather.reads if read.buffer == inverse.write.buffer]
    index = None if place is None or len(reads) > 1 else reads[0].indices[place]
    if index is None or not index.affine or index.offset or len(index.terms) != 1:
        return None
    (term,) = index.terms
    own = [at for at, write in enumerate(gather.write.indices) if write.axes == {term.axis}]
    if term.coefficient != 1 or len(own) != 1:
        return None
    result = output.write.indices[own[0]]
    if not (result.is_single_axis and result.terms and result.offset == 0):
        return None
    whole = output.axes[result.terms[0].axis].extent == inverse.axes[axis].extent * term.divisor
    return result.terms[0].axis if whole else None
