"""Steps that all lowerings with tensor cores share: C[s, i, j] += A[s, i, k] * B[s, j, k]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.tirx import IterVar

from compiler.lowering.stage import StageLowering
from compiler.lowering.tensor_intrinsics import register
from search.dag import Node
from search.sketches.tensor_core import BANKS, SIDE, MatrixProduct

# Abbreviations of types in the names of TVM's intrinsics.
TYPE_ABBREVIATIONS = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tf32": "tf32",
    "float32": "f32",
    "int8": "s8",
    "int32": "s32",
}
# Dynamic shared memory: the launch sets its size, which may exceed the limit of static shared memory.
SHARED = "shared.dyn"


class FragmentLowering(StageLowering):
    """A kernel that computes matrix products with tensor cores."""

    @property
    def threads(self) -> int:
        """The extent of threadIdx.x."""
        assert self.device.gpu is not None
        return self.device.gpu.warp_size

    def as_product(self, node: Node, found: MatrixProduct) -> None:
        """Rewrite a block to the axes of a matrix product, with copies of its operands and its result that
        have these axes.

            for n, h, w, o, c: C[n, h, w, o] += A[n, h, w, c] * B[c, o]
        ->
            for n, h, w, c: A1[0, (n * H + h) * W + w, c] = A[n, h, w, c]
            for c, o: B1[0, c, o] = B[c, o]
            for s, i, j, k: C1[s, i, j] += A1[s, i, k] * B1[s, k, j]
            for n, h, w, o: C[n, h, w, o] = C1[0, (n * H + h) * W + w, o]
        """
        block = self.schedule.get_sblock(node.name)
        order = "skj" if found.second_by_rows else "sjk"
        copies = [
            (self.schedule.reindex(block, ("read", found.first)), "write", "sik"),
            (self.schedule.reindex(block, ("read", found.second)), "write", order),
            (self.schedule.reindex(block, ("write", 0)), "read", "sij"),
        ]
        described = self.schedule.get(block)
        axes = list(described.iter_vars)
        parts = [(part, int(axis.dom.extent)) for part, axis in zip(found.parts, axes, strict=True)]
        regions = [described.reads[found.first], described.reads[found.second], described.writes[0]]

        def part_of(used: Any) -> tuple[str, int]:
            return next(part for part, axis in zip(parts, axes, strict=True) if axis.var.same_as(used))

        own = [[part_of(dim.min) for dim in region.region] for region in regions]
        for (copy, side, wanted), used in zip(copies, own, strict=True):
            self.schedule.transform_layout(copy, (side, 0), _fuse_parts(used, wanted))
        self.schedule.transform_block_layout(block, _fuse_parts(parts, "sijk"))

    def blockize(self, block: Any, found: MatrixProduct, tiles: Sequence[int]) -> tuple[Any, list[Any]]:
        """Pad the axes of a matrix product to whole tiles, and make a block of each instruction.

            for s, i, j, k
        ->
            for s, i, j, k, ii, jj, kk                # ii, jj, kk: 16 each; kk: 8 in TF32

        Returns the block around ii, jj and kk, and the loops s, i, j and k.
        """
        loops = self.schedule.get_loops(block)
        extents = [int(self.schedule.get(loop).extent) for loop in loops]
        if any(extent % size for extent, size in zip(extents, tiles, strict=True)):
            self.schedule.pad_einsum(block, tiles)
        batch, *loops = self.schedule.get_loops(block)
        sides = (SIDE, SIDE, found.depth)
        (i, ii), (j, jj), (k, kk) = (
            self.schedule.split(loop, [None, side]) for loop, side in zip(loops, sides, strict=True)
        )
        self.schedule.reorder(i, j, k, ii, jj, kk)
        return self.schedule.blockize(ii), [batch, i, j, k]

    def fetch_operand(self, fetch: Any, loop: Any, skew: int, warps: int, lanes: int) -> None:
        """Fetch a tile of an operand with all threads of the block, into rows that start in different banks.

            for i, k: A_shared[i, k] = A[i, k]
        ->
            for k0:
                for n, threadIdx.y, threadIdx.x: for v in T.vectorized(lanes): A_shared[...] = A[...]
        """
        assert self.device.gpu is not None
        self.schedule.compute_at(fetch, loop, preserve_unit_loops=True)
        self.schedule.storage_align(fetch, 0, -2, BANKS, skew)
        loops = self.schedule.get_loops(fetch)[-2:]
        _, warp, thread, vector = self.schedule.split(
            self.schedule.fuse(*loops), [None, warps, self.device.gpu.warp_size, lanes]
        )
        self.schedule.bind(warp, "threadIdx.y")
        self.schedule.bind(thread, "threadIdx.x")
        self.schedule.vectorize(vector)

    def inline_producers(self, block: Any) -> None:
        """Inline everything computed between global memory and a fetch.

            for i, k: A1[i, k] = relu(A[i, k])
            for i, k: A_shared[i, k] = A1[i, k]
        ->
            for i, k: A_shared[i, k] = relu(A[i, k])
        """

        def is_kernel(producer: Any) -> bool:
            axes, loops = self.schedule.get(producer).iter_vars, self.schedule.get_loops(producer)
            reduces = any(axis.iter_type == IterVar.CommReduce for axis in axes)
            return reduces or any(self.schedule.get(loop).thread_binding is not None for loop in loops)

        while producers := [p for p in self.schedule.get_producers(block) if not is_kernel(p)]:
            for producer in producers:
                self.schedule.compute_inline(producer)

    def read_fragments(self, outer: Any, found: MatrixProduct) -> list[Any]:
        """Read both operands from registers. Return the blocks that copy them there."""
        return [
            self.schedule.cache_read(outer, index, f"wmma.matrix_{which}")
            for index, which in ((found.first, "a"), (found.second, "b"))
        ]

    def load_fragments(self, fragments: Sequence[Any], loop: Any, found: MatrixProduct) -> None:
        """Load fragments of both operands inside a loop."""
        group = instructions(found)
        second = (found.depth, SIDE) if found.second_by_rows else (SIDE, found.depth)
        loads = ((SIDE, found.depth), group["load_a"]), (second, group["load_b"])
        for fragment, (sides, load) in zip(fragments, loads, strict=True):
            self.schedule.compute_at(fragment, loop, preserve_unit_loops=True)
            self.replace_copy(fragment, sides, load)

    def multiply(self, inner: Any, outer: Any, loop: Any, found: MatrixProduct) -> None:
        """Clear the sums before a loop, and replace the innermost loops by instructions."""
        group = instructions(found)
        start = self.schedule.decompose_reduction(outer, loop)
        (initial,) = self.schedule.get_child_blocks(start)
        self.schedule.tensorize(self.schedule.get_loops(initial)[-2], group["init"])
        self.schedule.tensorize(self.schedule.get_loops(inner)[-3], group["compute"])

    def replace_copy(self, block: Any, sides: tuple[int, int], intrinsic: str) -> Any:
        """Replace a copy of fragments with an intrinsic, and return the block that has it.

        for i, j -> for i0, j0: wmma_load(16 x 16)
        """
        i, j = self.schedule.get_loops(block)[-2:]
        i, ii = self.schedule.split(i, [None, sides[0]])
        j, jj = self.schedule.split(j, [None, sides[1]])
        self.schedule.reorder(i, j, ii, jj)
        self.schedule.tensorize(ii, intrinsic)
        (replaced,) = self.schedule.get_child_blocks(j)
        return replaced

    def copy_out(self, copy: Any, last: str, lanes: int) -> None:
        """Copy the result out of shared memory, and inline the elementwise consumers into the copy. `last` is
        the buffer that they compute.

            for i, j: C1[i, j] = C_shared[i, j]
            for i, j: D[i, j] = C1[i, j] + E[j]
        ->
            for n, threadIdx.x: for v in T.vectorized(lanes): D[...] = C_shared[...] + E[...]
        """
        self.inline_consumers(copy, last)
        loops = self.schedule.get_loops(copy)[-2:]
        _, thread, vector = self.schedule.split(self.schedule.fuse(*loops), [None, self.threads, lanes])
        self.schedule.bind(thread, "threadIdx.x")
        self.schedule.vectorize(vector)

    def inline_consumers(self, copy: Any, last: str) -> None:
        """Inline all consumers into a copy, up to the one that computes the buffer `last`."""
        while not self.schedule.get(copy).writes[0].source.same_as(self.buffers[last]):
            for consumer in self.schedule.get_consumers(copy):
                self.schedule.reverse_compute_inline(consumer)


def instructions(found: MatrixProduct) -> Mapping[str, str]:
    """Register the instructions with TVM. Return TVM's name of each by its role."""
    operand, sums = TYPE_ABBREVIATIONS[found.operand], TYPE_ABBREVIATIONS[found.sums]
    transposed = "" if found.second_by_rows else "_trans"
    shape = f"{SIDE}x{SIDE}x{found.depth}"
    group = {
        "init": f"wmma_fill_{shape}_{sums}",
        "load_a": f"wmma_load_{shape}_{operand}_a_shared_dyn",
        "load_b": f"wmma_load_{shape}_{operand}_b{transposed}_shared_dyn",
        "compute": f"wmma_sync_{shape}_{operand}{operand}{sums}{transposed}",
        "store": f"wmma_store_{shape}_{sums}_shared_dyn",
    }
    for name in group.values():
        register(name)
    return group


def _fuse_parts(axes: Sequence[tuple[str, int]], parts: str) -> Any:
    """Return an index map that fuses the axes of each part, in order; 0 for a part without axes.

    axes (i, 8), (i, 4), (k, 32) and parts "sik":  n, h, c -> 0, n * 4 + h, c
    """

    def fuse(*indices: Any) -> list[Any]:
        fused = []
        for part in parts:
            index: Any = tvm.tirx.const(0, "int32")
            for (own, extent), variable in zip(axes, indices, strict=True):
                if own == part:
                    index = index * extent + variable
            fused.append(index)
        return fused

    return tvm.tirx.IndexMap.from_func(fuse, ndim=len(axes), index_dtype="int32")
