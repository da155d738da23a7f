"""The stored buffers of programs: what each statement computes and the loops around it, for populations.

Everything is an array whose last dimension is programs. Loops stand outermost first; those that a program
doesn't have run once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from core.device import Device
from search.dag import Access, Node
from search.programs.compute_location import depth_of, is_inlined, vector_of
from search.programs.nest import Floats, Nest, region
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.sketch import read_kind, vector_loops
from search.sketches.stage import Placement, Stage


class LoopKind(IntEnum):
    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3


@dataclass(frozen=True)
class Loops:
    """`extents`, `kinds` [loops, programs]; `inside` [loops + 1, axes, programs]: how much of each axis the
    loops from there on cover."""

    extents: Floats
    kinds: Ints
    inside: Floats

    @property
    def iterations(self) -> Floats:
        """[programs]"""
        return np.asarray(self.extents.prod(axis=0))

    def take(self, loops: NDArray[np.bool_]) -> Loops:
        """Some of the outer loops; what they cover is left out of their own."""
        kept = np.flatnonzero(loops)
        return Loops(self.extents[kept], self.kinds[kept], self.inside[[*kept, len(loops)]])


@dataclass(frozen=True)
class Store:
    """One statement. Programs without it are not `present` [programs]; `unroll` [programs] is the limit up to
    which the compiler is told to unroll."""

    node: Node
    reads: tuple[Access, ...]
    write: Access
    computes: bool
    loops: Loops
    present: NDArray[np.bool_]
    unroll: Ints


def stores_of(population: Population, device: Device) -> Iterator[Store]:
    """Every statement of a CPU's programs, in the order of the sketch's stages."""
    for stage in population.sketch.stages:
        if stage.placement is Placement.TILED:
            yield from _of_tile(population, stage, device)
        elif stage.placement is Placement.NEST:
            yield _of_nest(population, stage, device)
        elif stage.placement is Placement.UNROLLED:
            yield _of_unrolled(population, stage)


def _of_tile(population: Population, stage: Stage, device: Device) -> Iterator[Store]:
    nest = Nest.of(population, stage)
    dag, node = population.sketch.dag, nest.node
    always = np.ones(len(population), dtype=bool)
    unroll = population.options(node.name, "unroll")
    levels, loops = _tile_loops(nest, device.lanes(dag.buffer[node.write.buffer].item_bytes))
    yield Store(node, node.reads, node.write, True, loops, always, unroll)
    for read in dict.fromkeys(node.reads):
        variable = population.sketch.choice(node.name, read_kind(read.buffer))
        for place, way in enumerate(variable.options if variable else ()):
            if str(way) not in ("direct", "packed"):
                chosen = population.column(node.name, read_kind(read.buffer)) == place
                copied = _followers(nest, levels, loops, int(way), tuple(sorted(read.axes)))
                yield Store(node, (read,), read, False, copied, chosen, unroll)
    if stage.epilogue_level:
        spatial = _followers(nest, levels, loops, stage.epilogue_level, node.spatial)
        consumer = dag.node[stage.epilogue] if stage.epilogue else None
        if consumer is None:
            yield Store(node, (node.write,), node.write, False, spatial, always, unroll)
        else:
            own = _renamed(spatial, node.spatial, consumer)
            yield Store(consumer, consumer.reads, consumer.write, True, own, always, unroll)


def _tile_loops(nest: Nest, lanes: int) -> tuple[Ints, Loops]:
    """The tile level of every loop, and the loops: the outermost level is one, vectors that don't fill the
    innermost factor are a loop inside another."""
    innermost, axis = nest.depth - 1, nest.node.vector_axis
    levels, steps, kinds = [0], [nest.extents[0]], [np.full_like(nest.trips(0), LoopKind.PARALLEL)]
    for level, moved in nest.loops:
        if level == 0:
            continue
        step = np.ones_like(nest.tile)
        step[moved] = nest.extents[level, moved]
        kind = LoopKind.UNROLLED if level == innermost else LoopKind.SERIAL
        if level == innermost and moved == axis:
            vector = step.copy()
            length = vector[axis] & -vector[axis]
            vector[axis] = np.where(length < lanes, vector[axis], length)
            steps += [step // vector, vector]
            kinds += [np.full_like(length, kind), np.full_like(length, LoopKind.VECTORIZED)]
            levels += [level, level]
        else:
            steps.append(step)
            kinds.append(np.full_like(step[0], kind))
            levels.append(level)
    return np.array(levels), _nested(np.array(steps), np.array(kinds))


def _nested(steps: Ints, kinds: Ints) -> Loops:
    """Loops that multiply the axes by `steps` [loops, axes, programs]."""
    inside = np.ones((len(steps) + 1, *steps.shape[1:]))
    inside[:-1] = np.cumprod(steps[::-1], axis=0)[::-1]
    return Loops(steps.prod(axis=1, dtype=np.float64), kinds, inside)


def _followers(nest: Nest, levels: Ints, loops: Loops, level: int, axes: tuple[int, ...]) -> Loops:
    """The loops of a statement inside so many tile levels: over what those leave of some axes, of which the
    contiguous one is a vector."""
    outer = loops.take(levels < level)
    rest = nest.inside[level]
    order = sorted(axes, key=lambda axis: (axis == nest.node.vector_axis, axis))
    inner = np.ones((len(order), *rest.shape), dtype=np.int64)
    kinds = np.full((len(order), rest.shape[-1]), LoopKind.SERIAL)
    for number, axis in enumerate(order):
        inner[number, axis] = rest[axis]
        if axis == nest.node.vector_axis:
            kinds[number] = LoopKind.VECTORIZED
    return _joined(outer, _nested(inner, kinds), axes)


def _joined(outer: Loops, inner: Loops, axes: tuple[int, ...]) -> Loops:
    """Loops in other loops, on some of the axes."""
    covered = np.ones_like(outer.inside[:-1])
    covered[:, list(axes)] = outer.inside[:-1][:, list(axes)]
    return Loops(
        np.concatenate([outer.extents, inner.extents]),
        np.concatenate([outer.kinds, inner.kinds]),
        np.concatenate([covered, inner.inside]),
    )


def _renamed(loops: Loops, spatial: tuple[int, ...], consumer: Node) -> Loops:
    """The same loops as they move the axes of a consumer, which follow the spatial ones of its producer."""
    inside = np.ones((len(loops.inside), len(consumer.axes), loops.inside.shape[-1]))
    inside[:, list(consumer.spatial)] = loops.inside[:, list(spatial)]
    return Loops(loops.extents, loops.kinds, inside)


def _of_nest(population: Population, stage: Stage, device: Device) -> Store:
    sketch = population.sketch
    node = sketch.dag.node[stage.node]
    loops = _nest_loops(population, stage)
    outer = sketch.hosts.get(stage.node)
    if outer is not None and sketch.stage[outer.name].placement is Placement.TILED:
        loops = _in_tiles(population, stage, outer, loops, device)
    present = ~is_inlined(population, stage.node)
    kind = (stage.node, "unroll")
    unroll = (
        population.options(*kind) if kind in sketch.columns else np.zeros(len(population), dtype=np.int64)
    )
    return Store(node, node.reads, node.write, True, loops, present, unroll)


def _nest_loops(population: Population, stage: Stage) -> Loops:
    """The axes one after the other, the outer ones in parallel, vectors split off the one that they run over
    and put innermost. Fused loops stay apart here: they cover the same."""
    node = population.sketch.dag.node[stage.node]
    vector = vector_of(population, stage)
    along = node.reduction[-1] if stage.rfactor.fills_vectors else next(iter(vector_loops(node)), None)
    count = np.zeros(len(population), dtype=np.int64)
    if (node.name, "parallel") in population.sketch.columns:
        count = population.options(node.name, "parallel")
    count = np.where(depth_of(population, node.name) > 0, 0, count)
    order = [*node.spatial, *node.reduction]
    steps = np.ones((len(order) + 1, len(node.axes), len(population)), dtype=np.int64)
    kinds = np.full((len(order) + 1, len(population)), LoopKind.SERIAL)
    for number, axis in enumerate(order):
        steps[number, axis] = node.axes[axis].extent
        kinds[number] = np.where(number < count, LoopKind.PARALLEL, LoopKind.SERIAL)
        if axis == along:
            lanes = np.minimum(vector, node.axes[axis].extent)
            steps[number, axis] = -(-node.axes[axis].extent // lanes)
            steps[-1, axis] = lanes
    kinds[-1] = LoopKind.VECTORIZED
    return _nested(steps, kinds)


def _in_tiles(population: Population, stage: Stage, outer: Node, own: Loops, device: Device) -> Loops:
    """As `own` where a nest stands by itself; else the tile's outer loops, and what they read of it."""
    dag = population.sketch.dag
    node = dag.node[stage.node]
    nest = Nest.of(population, population.sketch.stage[outer.name])
    levels, tile = _tile_loops(nest, device.lanes(dag.buffer[outer.write.buffer].item_bytes))
    depth = depth_of(population, stage.node)
    shape = dag.buffer[node.write.buffer].shape
    reads = [read for read in outer.reads if read.buffer == node.write.buffer]
    touched = [
        np.maximum.reduce(dims)
        for dims in zip(*(region(r, tile.inside.astype(np.int64), shape) for r in reads), strict=True)
    ]
    # What is read at the deepest level that is still around the nest.
    around = (levels[:, None] < depth) & (depth > 0)
    last = around.sum(axis=0)
    inside = np.ones((len(levels), *own.inside.shape[1:]))
    rest = np.ones(own.inside.shape[1:])
    for index, dim in zip(node.write.indices, touched, strict=True):
        for term in index.terms:
            deepest = np.take_along_axis(dim, last[None], axis=0)[0]
            rest[term.axis] = np.where(depth > 0, deepest, own.inside[0, term.axis])
            inside[:, term.axis] = np.where(around, dim[:-1], rest[term.axis])
    share = rest / own.inside[0]
    inner = np.maximum(own.inside * share[None], np.minimum(own.inside, 1.0))
    extents = inner[:-1].prod(axis=1) / inner[1:].prod(axis=1)
    return Loops(
        np.concatenate([np.where(around, tile.extents, 1.0), extents]),
        np.concatenate([np.where(around, tile.kinds, LoopKind.SERIAL), own.kinds]),
        np.concatenate([inside, inner]),
    )


def _of_unrolled(population: Population, stage: Stage) -> Store:
    """The free axes in two levels around unrolled loops over constants."""
    node = population.sketch.dag.node[stage.node]
    steps, kinds = [], []
    for level, kind in enumerate((LoopKind.PARALLEL, LoopKind.SERIAL)):
        for axis in node.spatial:
            if (node.name, axis) in population.sketch.columns:
                step = np.ones((len(node.axes), len(population)), dtype=np.int64)
                step[axis] = population.factors(node.name, axis)[:, level]
                steps.append(step)
                is_vector = level == 1 and axis == node.vector_axis
                kinds.append(np.full(len(population), LoopKind.VECTORIZED if is_vector else kind))
    for axis in (*node.constant_axes, *node.reduction):
        step = np.ones((len(node.axes), len(population)), dtype=np.int64)
        step[axis] = node.axes[axis].extent
        steps.append(step)
        kinds.append(np.full(len(population), LoopKind.UNROLLED))
    always = np.ones(len(population), dtype=bool)
    loops = _nested(np.array(steps), np.array(kinds))
    return Store(node, node.reads, node.write, True, loops, always, np.zeros(len(population), dtype=np.int64))
