"""Lower the loop nests of CPU programs: standalone or inside their consumer's loops, with vectors and
rfactor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.lowering.primitives import power_of_two, unroll_up_to
from compiler.lowering.stage import InlinedLowering, Lowering, StageLowering
from search.sketches.stage import Rfactor, Stage
from search.sketches.variables import transposed_axis, vector_loops


@dataclass
class _NestLoops:
    """A nest's own loops: its spatial loops in the order of the axes, then its reduction loops."""

    spatial: list[Any]
    reduction: list[Any]


@dataclass
class _PartialNest:
    """The nest of partial results that rfactor makes.

    `spatial` are its loops over results, `steps` its reduction loops, and `lanes` its loops over the partial
    results of one result.
    """

    block: Any
    spatial: list[Any]
    steps: list[Any]
    lanes: Any


def nest_lowering(lowering: Lowering, stage: Stage) -> StageLowering:
    """Return the lowering of a nest: inlined if the program inlines it."""
    is_inlined = lowering.program.location(stage.node) == "inline"
    return (InlinedLowering if is_inlined else NestLowering)(lowering, stage)


class NestLowering(StageLowering):
    """A nest of plain loops. `place` sets `loops` and, with an rfactor, `partial`."""

    loops: _NestLoops
    partial: _PartialNest

    def place(self) -> None:
        """Compute a nest inside its consumer's loops, at the program's depth.

            for i, j: B[i, j] = f(A[i, j])
            for i, j: C[i, j] = g(B[i, j])
        ->
            for i:
                for j: B[i, j] = f(A[i, j])
                for j: C[i, j] = g(B[i, j])

        A reduction with an rfactor becomes two nests, see `_rfactor`.
        """
        node = self.node
        block = self.schedule.get_sblock(node.name)
        partial = self._rfactor(block) if self.stage.rfactor else None
        depth = self._depth(self.stage)
        if depth:
            self.schedule.compute_at(block, self._compute_at_loop(), preserve_unit_loops=True)
        if partial is None:
            own = self.schedule.get_loops(block)[-len(node.axes) :] if node.axes else []
            nest = _NestLoops([own[axis] for axis in node.spatial], [own[axis] for axis in node.reduction])
            if nest.spatial and nest.reduction:
                self.schedule.reorder(*nest.spatial, *nest.reduction)
            self.loops = nest
            return
        own = self.schedule.get_loops(block)[-len(node.spatial) - 1 :]
        # The loop over partial results is the last one. Where compute_at makes new loops, it is the first.
        spatial, summed = (own[1:], own[0]) if depth else (own[:-1], own[-1])
        if depth and spatial:
            self.schedule.reorder(*spatial, summed)
        self.loops = _NestLoops(list(spatial), [summed])
        self.partial = self._place_partial(partial, depth)

    def annotate(self) -> None:
        """Vectorize the innermost loop, and run fused outer loops in parallel."""
        if self.stage.rfactor.fills_vectors:
            self._vectorize_partial()
        elif self.stage.rfactor:
            self._parallelize_partial()
        else:
            self._vectorize()
        if self._depth(self.stage) == 0:
            self._parallelize(self.loops.spatial)

    def decompose(self) -> None:
        """Initialize the accumulators in a separate nest.

            for i, k:
                with T.init(): s[i] = 0
                s[i] = s[i] + A[i, k]
        ->
            for i:
                s[i] = 0
                for k: s[i] = s[i] + A[i, k]
        """
        own, rfactor = self.loops, self.stage.rfactor
        if own.reduction and (own.spatial or rfactor):
            self.schedule.decompose_reduction(self.schedule.get_sblock(self.node.name), own.reduction[0])
        if not rfactor:
            return
        partial = self.partial
        if rfactor is Rfactor.UNEVEN:
            # TVM can't decompose a reduction under the condition of a shorter last iteration. It partitions
            # the loop instead.
            self.schedule.annotate(partial.steps[-1], "pragma_loop_partition_hint", 1)
            return
        init = self.schedule.decompose_reduction(partial.block, partial.steps[0])
        width, lanes = self.primitives.extent(partial.lanes), self.primitives.lanes(partial.block)
        if rfactor.fills_vectors and power_of_two(width) < min(width, lanes):
            self.primitives.peel_vectors_later(partial.block)
            self.primitives.peel_vectors_later(init)

    def loop_around(self, inner: Stage) -> Any:
        return self.loops.spatial[self._depth(inner) - 1]

    def _depth(self, stage: Stage) -> int:
        """Return how many loops of its consumer surround a nest; 0 for a standalone nest. In a chain in
        blocks, this is the loop over the blocks.
        """
        if stage.blocks:
            return 1
        location = self.program.location(stage.node)
        return int(location) if location.isdigit() else 0

    def _compute_at_loop(self) -> Any:
        if self.stage.blocks:
            return self.block_loop()
        return self.stages[self.program.sketch.compute_at[self.node.name].name].loop_around(self.stage)

    def _rfactor(self, block: Any) -> Any:
        """Split the last reduction loop, and make one half the last axis of partial results.

            for i, k: s[i] += A[i, k]
        ->
            for i, k0, k1: p[i, k1] += A[i, k0 * 16 + k1]
            for i, k1: s[i] += p[i, k1]

        Returns the block of the partial results.
        """
        lanes = self.choice("lanes")
        last = self.schedule.get_loops(block)[self.node.reduction[-1]]
        steps = -(-self.primitives.extent(last) // lanes)
        is_inner = self.stage.rfactor.fills_vectors
        outer, inner = self.primitives.split(last, [steps, lanes] if is_inner else [lanes, steps])
        return self.schedule.rfactor(inner if is_inner else outer, len(self.node.spatial))

    def _place_partial(self, block: Any, depth: int) -> _PartialNest:
        """Compute partial results right before they are summed.

            for i, k0, k1: p[i, k1] += A[i, k0 * 16 + k1]
            for i, k1: s[i] += p[i, k1]
        ->
            for i:
                for k1, k0: p[i, k1] += A[i, k0 * 16 + k1]
                for k1: s[i] += p[i, k1]

        Partial results of a standalone nest stay where they are.
        """
        node, own, rfactor = self.node, self.loops, self.stage.rfactor
        is_moved = not rfactor.has_own_nest and bool(own.spatial or depth)
        if is_moved:
            target = own.spatial[-1] if own.spatial else self._compute_at_loop()
            self.schedule.compute_at(block, target, preserve_unit_loops=True)
        loops = self.schedule.get_loops(block)[-len(node.axes) - 1 :]
        if is_moved:
            # compute_at puts the axis of partial results first.
            lanes, *rest = loops
            return _PartialNest(block, rest[: len(node.spatial)], rest[len(node.spatial) :], lanes)
        last = node.reduction[-1]
        step, lanes = loops[last : last + 2] if rfactor.fills_vectors else loops[last : last + 2][::-1]
        steps = [*(loops[axis] for axis in node.reduction[:-1]), step]
        return _PartialNest(block, [loops[axis] for axis in node.spatial], steps, lanes)

    def _vectorize_partial(self) -> None:
        """Vectorize over the partial results of one result.

            for k1, i, k0: p[i, k1] += A[i, k0 * 16 + k1]
        ->
            for i, k0:
                for k1 in T.vectorized(16): p[i, k1] += A[i, k0 * 16 + k1]
        """
        partial = self.partial
        self.schedule.reorder(*partial.spatial, *partial.steps, partial.lanes)
        self.schedule.vectorize(partial.lanes)
        if self.stage.rfactor.has_own_nest:
            self._parallelize(partial.spatial)

    def _parallelize_partial(self) -> None:
        """Compute the partial results of one result on several cores.

            for i, k0, k1: p[i, k0] += A[k0 * 64 + k1, i]
        ->
            for k0 in T.parallel(8):
                for i0, k1:
                    for i1 in T.vectorized(16): p[i, k0] += A[k0 * 64 + k1, i]
        """
        partial = self.partial
        vector = self._split_vector(partial.spatial, *self._fuse_inner(partial.spatial))
        self.schedule.reorder(partial.lanes, *partial.spatial, *partial.steps, *vector)
        self.schedule.parallel(partial.lanes)
        for loop in vector:
            self.schedule.vectorize(loop)

    def _fuse_inner(self, spatial: list[Any]) -> tuple[int, int]:
        """Fuse the program's number of inner loops that are contiguous in the result. A loop with another
        nest computed inside it is not fused.

            for n, h, w, c: B[n, h, w, c] = ...
        ->
            for n, h, wc: B[n, h, wc // C, wc % C] = ...

        Changes `spatial`. Returns the position of the fused loop in it, and the lanes of its vectors.
        """
        axes = vector_loops(self.node)
        if not axes:
            return 0, 1
        place = self.node.spatial.index(axes[0])
        if len(axes) > 1:
            wanted = axes[self.choice("fused") - 1]
            first = max(self.node.spatial.index(wanted), *self._compute_at_depths())
            loops = spatial[first : place + 1]
            if len(loops) > 1 and all(map(self.primitives.is_fixed, loops)):
                spatial[first : place + 1] = [self.schedule.fuse(*loops)]
                place = first
        if not self.primitives.is_fixed(spatial[place]):
            return place, 1
        longest = 1 << (self.primitives.extent(spatial[place]) - 1).bit_length()
        return place, min(self.choice("vector"), longest)

    def _split_vector(self, spatial: list[Any], place: int, lanes: int) -> list[Any]:
        """Split a vector off the loop at `place`. Return its loop in a list; [] unless `lanes` divides the
        extent.
        """
        extent = self.primitives.extent(spatial[place]) if lanes > 1 else 1
        if lanes == 1 or extent % lanes:
            return []
        spatial[place], inner = self.primitives.split(spatial[place], [extent // lanes, lanes])
        return [inner]

    def _vectorize(self) -> None:
        """Vectorize the loops that are contiguous in the result, as the innermost loop.

            for j, i, k: C[j, i] += A[k, j] * B[k, i]
        ->
            for j, i0, k:
                for i1 in T.vectorized(16): C[j, i] += A[k, j] * B[k, i]
        """
        own = self.loops
        row = self._split_row(own.spatial)
        place, lanes = self._fuse_inner(own.spatial)
        vector = self._split_vector(own.spatial, place, lanes)
        for inner in vector:
            self.schedule.reorder(*own.spatial[place + 1 :], *own.reduction, inner)
            self.schedule.vectorize(inner)
        if row:
            self.schedule.reorder(*own.spatial, *row, *vector)
        elif lanes > 1 and not vector and not own.reduction:
            loop = own.spatial.pop(place)
            self.schedule.reorder(*own.spatial[place:], loop)
            self.primitives.vectorize_later(self.schedule.get_sblock(self.node.name), lanes)

    def _split_row(self, spatial: list[Any]) -> list[Any]:
        """Split off the elements that a transposition reads from one cache line, as the innermost loop around
        the vector. Farther outside, the cache line would be evicted before its next element is read.

            for i, j: B[i, j] = A[j, i]
        ->
            for i0, j, i1: B[i0 * 16 + i1, j] = A[j, i0 * 16 + i1]

        Returns a list of that loop; an empty list if the program doesn't split the nest this way.
        """
        if (self.node.name, "row") not in self.program.sketch.variable:
            return []
        place, part = self.node.spatial.index(transposed_axis(self.node)), self.choice("row")
        if (
            part == 1
            or place < max(self._compute_at_depths())
            or not self.primitives.is_fixed(spatial[place])
        ):
            return []
        extent = self.primitives.extent(spatial[place])
        if extent % part:
            return []
        spatial[place], inner = self.primitives.split(spatial[place], [extent // part, part])
        return [inner]

    def _compute_at_depths(self) -> list[int]:
        """Return the depth of every nest that is computed inside this one; [0] if there is none."""
        compute_at = self.program.sketch.compute_at
        return [
            self._depth(other)
            for other in self.program.sketch.nests
            if other.node in compute_at and compute_at[other.node] is self.node
        ] or [0]

    def _parallelize(self, spatial: list[Any]) -> None:
        """Fuse the program's number of outer loops and run them in parallel. A loop with another nest
        computed inside it is not fused.

            for i, j, k: C[i, j] += A[i, k] * B[k, j]
        ->
            for i_j in T.parallel(I * J):
                for k: C[i, j] += A[i, k] * B[k, j]
        """
        if not spatial:
            return
        inside = [depth for depth in self._compute_at_depths() if depth]
        count = min([self.choice("parallel"), len(spatial), *inside])
        if count == 0:
            return
        fused = self.schedule.fuse(*spatial[:count]) if count > 1 else spatial[0]
        self.schedule.parallel(fused)
        unroll_up_to(self.schedule, fused, self.choice("unroll"))
        spatial[:count] = [fused]


class UnrolledLowering(StageLowering):
    """A nest that multiplies by small constant matrices."""

    def place(self) -> None:
        """Compute a nest of a blocked chain inside the loop over the blocks."""
        if self.stage.blocks:
            block = self.schedule.get_sblock(self.node.name)
            self.schedule.compute_at(block, self.block_loop(), preserve_unit_loops=True)

    def annotate(self) -> None:
        """Unroll the loops over small constant matrices, such as Winograd's M. Tile the other spatial axes by
        two levels around them.

            for p, c, i, j, r, s:
                B[i, j, p, c] += D[r, s, p, c] * M[r, i] * M[s, j]
        ->
            for p0_c0 in T.parallel:
                for p1:
                    for i, j, r, s in T.unroll:
                        for c1 in T.vectorized:
                            B[i, j, p, c] += D[r, s, p, c] * M[r, i] * M[s, j]
        """
        node, block = self.node, self.schedule.get_sblock(self.node.name)
        loops = self.schedule.get_loops(block)[-len(node.axes) :]
        free = [axis for axis in node.spatial if axis not in node.constant_axes]
        parts = {axis: self._parts(axis, loops[axis]) for axis in free}
        outer = [parts[axis][0] for axis in free]
        inner = [parts[axis][1] for axis in free if axis != node.vector_axis]
        unrolled = [loops[axis] for axis in (*node.spatial, *node.reduction) if axis not in free]
        vector = [parts[node.vector_axis][1]] if node.vector_axis in parts else []
        self.schedule.reorder(*outer, *inner, *unrolled, *vector)
        for loop in unrolled:
            self.schedule.unroll(loop)
        for loop in vector:
            extent = self.primitives.extent(loop)
            length = power_of_two(extent)
            self.schedule.vectorize(self.primitives.split(loop, [extent // length, length])[-1])
        if any(self.primitives.extent(loop) > 1 for loop in outer) and not self.stage.blocks:
            self.schedule.parallel(self.schedule.fuse(*outer))
        if node.reduction:
            self.schedule.decompose_reduction(block, loops[node.reduction[0]])

    def _parts(self, axis: int, loop: Any) -> list[Any]:
        """Split the loop of an axis into two levels. The rows of a block aren't split further."""
        is_cut = axis in self.stage.rows
        factors = [self.primitives.extent(loop), 1] if is_cut else self.program.factors(self.node.name, axis)
        return self.primitives.split(loop, factors)


class RowBlockLowering(StageLowering):
    """The last nest of a chain that is computed in blocks of rows. `place` sets `loop`, the loop over the
    blocks.
    """

    loop: Any

    def place(self) -> None:
        """Run blocks of rows in parallel.

            for n, h, w, c: Y[n, h, w, c] = max(A[n, h // 4, h % 4, w // 4, w % 4, c], 0)
        ->
            for n_h0 in T.parallel:
                for h1, w: for c in T.vectorized: Y[n, h, w, c] = ...
        """
        block = self.schedule.get_sblock(self.node.name)
        loops = self.schedule.get_loops(block)
        *images, rows = self.stage.rows
        counts = {rows: self.stage.blocks} | dict.fromkeys(self.stage.channels, self.stage.channel_blocks)
        parts = {
            axis: self.primitives.split(loops[axis], [count, self.node.axes[axis].extent // count])
            for axis, count in counts.items()
        }
        # Each core keeps its part of the weights in its cache.
        around = [parts[axis][0] for axis in self.stage.channels]
        around += [*(loops[axis] for axis in images), parts[rows][0]]
        inner = {axis: part[1] for axis, part in parts.items()}
        others = [inner.get(axis, loop) for axis, loop in enumerate(loops) if axis not in images]
        self.schedule.reorder(*around, *others)
        self.loop = self.schedule.fuse(*around)
        self.schedule.parallel(self.loop)
        self.primitives.vectorize_later(block)

    def loop_around(self, inner: Stage) -> Any:
        return self.loop
