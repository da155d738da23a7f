"""Builders of dags from short texts."""

from __future__ import annotations

from search.dag import Axis, AxisKind, Buffer, BufferAccess, BufferRole, Dag, Index, Node, Term

Shape = tuple[int, ...]
INNER = BufferRole.INTERMEDIATE


def node(
    name: str,
    spatial: dict[str, int],
    reads: list[str],
    *,
    reduction: dict[str, int] | None = None,
    flops: float = 0.0,
    has_branch: bool = False,
    is_expensive: bool = False,
    reducer: str = "sum",
    also: tuple[str, ...] = (),
    constant_axes: tuple[str, ...] = (),
) -> Node:
    """Return a node that writes a buffer of its own name at its spatial axes, in order. A read is a text such
    as "data[n, 2*y + ry - 1, 3*f//4, ?i]", where ? marks an index that is not affine. `also` are further
    buffers that it writes at the same position.
    """
    axes = [Axis(axis, extent, AxisKind.SPATIAL) for axis, extent in spatial.items()]
    axes += [Axis(axis, extent, AxisKind.REDUCTION) for axis, extent in (reduction or {}).items()]
    names = [axis.name for axis in axes]
    place = f"[{', '.join(spatial)}]"
    return Node(
        name=name,
        axes=tuple(axes),
        write=access(name + place, names),
        reads=tuple(access(read, names) for read in reads),
        flops=flops,
        has_branch=has_branch,
        is_expensive=is_expensive,
        reducer=reducer if reduction else None,
        extra_writes=tuple(access(other + place, names) for other in also),
        constant_axes=tuple(names.index(axis) for axis in constant_axes),
    )


def access(text: str, axes: list[str]) -> BufferAccess:
    buffer, _, inner = text.removesuffix("]").partition("[")
    return BufferAccess(buffer, tuple(index(part, axes) for part in inner.split(",") if part.strip()))


def index(text: str, axes: list[str]) -> Index:
    terms: list[Term] = []
    offset = 0
    for part in text.replace(" ", "").replace("-", "+-").replace("?", "").split("+"):
        coefficient, _, quotient = part.rpartition("*")
        name, _, divisor = quotient.partition("//")
        if name in axes:
            terms.append(Term(axes.index(name), int(coefficient or 1), int(divisor or 1)))
        elif part:
            offset += int(part)
    return Index(tuple(sorted(terms)), offset, affine="?" not in text)


def dag(
    inputs: dict[str, Shape],
    nodes: list[Node],
    dtypes: dict[str, str] | None = None,
    constants: tuple[str, ...] = (),
) -> Dag:
    """Return the dag of some nodes; the last one's result is the output."""
    types = dtypes or {}
    buffers = [
        Buffer(name, shape, types.get(name, "float32"), BufferRole.INPUT, name in constants)
        for name, shape in inputs.items()
    ]
    for item in nodes:
        role = BufferRole.OUTPUT if item is nodes[-1] else INNER
        shape = tuple(item.axes[axis].extent for axis in item.spatial)
        buffers += [
            Buffer(w.buffer, shape, types.get(w.buffer, "float32"), role if w is item.write else INNER)
            for w in item.writes
        ]
    return Dag(nodes[-1].name, tuple(buffers), tuple(nodes))
