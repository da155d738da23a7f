"""The resources of matrix products of warpgroups, for every program of a population."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.device import Gpu
from search.programs.tensor_tile import TensorTile
from search.sketches.factors import Ints
from search.sketches.warpgroups import COLUMN_BYTES, GROUP_ROWS, GROUP_THREADS, MAP_BYTES

# The registers of a thread beside its sums.
OTHER_REGISTERS = 40
# The shared memory of barriers, and of the padding that makes swizzled tiles start at such addresses.
BARRIER_BYTES = 1024
# The products that an H200's multiprocessor adds up in a cycle, relative to those by `mma.sync`.
RATES = {"float16": 2048 / 1216, "bfloat16": 2048 / 1216, "int8": 4096 / 1808}


@dataclass(frozen=True)
class WarpgroupTile(TensorTile):
    """One stage whose blocks are warpgroups, each with 64 rows of all the block's columns."""

    @property
    def rate(self) -> float:
        return RATES[self.product.operand]

    def tile(self, part: str) -> Ints:
        """Return the extent of an axis part (s, i, j or k) that a block covers between two fetches."""
        match part:
            case "i":
                return np.asarray(GROUP_ROWS * self.chosen("warpgroups"))
            case "j":
                return self.chosen("columns")
            case "k":
                return self.chosen("depth")
        return np.ones(len(self.population), dtype=np.int64)

    @property
    def warps(self) -> Ints:
        return np.asarray(GROUP_THREADS // 32 * self.chosen("warpgroups"))

    @property
    def has_maps(self) -> NDArray[np.bool_]:
        """Whether one thread fetches whole tiles by tensor maps."""
        return self.chosen("tensor maps") == 1

    @property
    def is_fetched_by_threads(self) -> NDArray[np.bool_]:
        return ~self.has_maps

    @property
    def operand_bytes(self) -> tuple[Ints, Ints]:
        """The shared memory of both operands' tiles: columns of 16 bytes, each with a padding row; of 128
        bytes without padding if they are fetched by tensor maps."""
        i, j, k = self.tile("i"), self.tile("j"), self.tile("k")
        rows, row = (k, j) if self.product.second_by_rows else (j, k)
        item = self.population.sketch.dag.buffer[self.node.reads[0].buffer].item_bytes
        unit = np.where(self.has_maps, MAP_BYTES, COLUMN_BYTES) // item
        padding = np.where(self.has_maps, 0, 1)
        return k // unit * (i + padding) * unit * item, row // unit * (rows + padding) * unit * item

    @property
    def shared_bytes(self) -> Ints:
        """The shared memory of a block. The results lie where the operands were."""
        tiles = np.maximum(np.sum(self.operand_bytes, axis=0) * self.stages, self.result_bytes)
        return tiles + np.where(self.has_maps, BARRIER_BYTES, 0)

    @property
    def registers(self) -> Ints:
        """The registers of all threads of a block."""
        each = self.tile("j") // 2 + OTHER_REGISTERS
        return np.asarray(GROUP_THREADS * self.chosen("warpgroups") * each)

    def resident(self, gpu: Gpu) -> Ints:
        """Return the blocks for which a multiprocessor has shared memory and registers."""
        return np.minimum(super().resident(gpu), gpu.registers // self.registers)
