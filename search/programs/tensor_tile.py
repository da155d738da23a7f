"""The resources of matrix products on tensor cores, for every program of a population."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from core.device import Gpu
from search.dag import Node, extent_of
from search.programs.program import Population
from search.sketches.factors import Ints
from search.sketches.stage import Stage
from search.sketches.tensor_core import BANKS, SIDE, WIDE_SKEW, MatrixProduct, axes_of, match_product


@dataclass(frozen=True)
class TensorTile:
    """One tensorized stage; every quantity is [programs]."""

    population: Population
    stage: Stage
    product: MatrixProduct

    @classmethod
    def of(cls, population: Population, stage: Stage) -> Self:
        gpu = population.sketch.gpu
        assert gpu is not None
        found = match_product(population.sketch.dag, population.sketch.dag.node[stage.node], gpu)
        assert found is not None
        return cls(population, stage, found)

    @property
    def rate(self) -> float:
        """The speed of its instructions, relative to `mma.sync`, which calibration measures."""
        return 1.0

    @property
    def node(self) -> Node:
        return self.population.sketch.dag.node[self.stage.node]

    def extent(self, part: str) -> int:
        return extent_of(self.node, axes_of(self.product.parts, part))

    def chosen(self, kind: str) -> Ints:
        return self.population.chosen(self.stage.node, kind)

    def tile(self, part: str) -> Ints:
        """Return the extent of an axis part (s, i, j or k) that a block covers between two fetches."""
        fragments = self.chosen(f"fragments {part}")
        return (
            self.product.depth * fragments if part == "k" else SIDE * fragments * self.chosen(f"warps {part}")
        )

    def count(self, part: str) -> Ints:
        """Return the number of tiles along a part."""
        return np.asarray(-(-self.extent(part) // self.tile(part)))

    @property
    def warps(self) -> Ints:
        return np.asarray(self.chosen("warps i") * self.chosen("warps j"))

    @property
    def fragments(self) -> Ints:
        """The accumulator fragments that a warp holds."""
        return np.asarray(self.chosen("fragments i") * self.chosen("fragments j"))

    @property
    def blocks(self) -> Ints:
        return np.asarray(self.extent("s") * self.count("i") * self.count("j"))

    @property
    def stages(self) -> Ints:
        """The number of an operand's tiles in a block's shared memory."""
        return self.chosen("stages")

    @property
    def is_fetched_by_threads(self) -> NDArray[np.bool_]:
        """Whether threads load the operands' tiles."""
        return np.ones(len(self.population), dtype=np.bool_)

    @property
    def operand_bytes(self) -> tuple[Ints, Ints]:
        """The shared memory of both operands' tiles, with padded rows."""
        item = self.population.sketch.dag.buffer[self.node.reads[0].buffer].item_bytes
        i, j, k = self.tile("i"), self.tile("j"), self.tile("k")
        first, second = self.product.skews
        rows, row = (k, j) if self.product.second_by_rows else (j, k)
        return i * padded(k, first) * item, rows * padded(row, second) * item

    @property
    def is_narrow(self) -> bool:
        """Whether the operands' type differs from the results' type."""
        return self.population.sketch.dag.buffer[self.node.reads[0].buffer].dtype != self.product.sums

    @property
    def result_bytes(self) -> Ints:
        """The shared memory of the results' tile, with padded rows."""
        item = self.population.sketch.dag.buffer[self.node.write.buffer].item_bytes
        return np.asarray(self.tile("i") * padded(self.tile("j"), WIDE_SKEW) * item)

    @property
    def shared_bytes(self) -> Ints:
        return np.asarray(np.sum(self.operand_bytes, axis=0) * self.stages + self.result_bytes)

    def resident(self, gpu: Gpu) -> Ints:
        """Return the blocks for which a multiprocessor has shared memory."""
        return np.asarray(gpu.resident_shared_bytes // self.shared_bytes)


def padded(length: Ints, skew: int) -> Ints:
    """Return the length of a padded row: each row starts `skew` elements further among the banks."""
    return length + (skew - length) % BANKS
