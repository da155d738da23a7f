"""The sizes of an attention that a GPU's kernel computes with an online softmax."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.device import Gpu
from core.profile import FLOAT32
from search.dag import extent_of
from search.programs.attention_tile import AttentionTile
from search.programs.program import Population
from search.sketches.attention import attention_with_products, row_skews
from search.sketches.factors import Ints
from search.sketches.stage import Stage
from search.sketches.tensor_core import SIDE, MatrixProduct, axes_of

# The fragments of queries of a warp, and of keys between two fetches.
ONLINE_ROWS = (1, 2)
ONLINE_COLUMNS = (1, 2, 4, 8)
# A lane's values of a fragment, and its registers besides scores and weighted values: operands, addresses,
# maxima and sums.
OF_LANE, OTHER_REGISTERS = 8, 56
# The lanes of a warp.
LANES = 32
# The most registers of a thread.
MAX_REGISTERS = 255


@dataclass(frozen=True)
class OnlineAttentionTile:
    """An attention with an online softmax; every quantity but the sizes is [programs]. Heads that share keys
    and values are one image.
    """

    population: Population
    stage: Stage
    sizes: AttentionTile
    of_scores: MatrixProduct
    of_values: MatrixProduct

    @classmethod
    def of(cls, population: Population, stage: Stage) -> OnlineAttentionTile:
        dag = population.sketch.dag
        found, of_scores, of_values = attention_with_products(
            dag, dag.node[stage.node], population.sketch.gpu, is_grouped=True
        )
        images, queries = (extent_of(found.scores, axes_of(of_scores.parts, part)) for part in "si")
        sizes = replace(AttentionTile.of(dag, found), images=images, queries=queries)
        return cls(population, stage, sizes, of_scores, of_values)

    def chosen(self, kind: str) -> Ints:
        return self.population.chosen(self.stage.node, kind)

    @property
    def warps(self) -> Ints:
        return self.chosen("warps")

    @property
    def parts(self) -> Ints:
        """The warps that share queries, each with a part of a step's keys."""
        return self.chosen("parts")

    @property
    def queries(self) -> Ints:
        """The queries of a block."""
        return np.asarray(SIDE * np.maximum(self.warps // self.parts, 1) * self.chosen("fragments i"))

    @property
    def keys_of_warp(self) -> Ints:
        """The keys of a warp in a step."""
        return np.asarray(SIDE * self.chosen("fragments j"))

    @property
    def keys(self) -> Ints:
        """The keys of a step."""
        return self.parts * self.keys_of_warp

    @property
    def depth(self) -> int:
        """The length of a score's sum, in whole fragments."""
        return _whole(self.sizes.depth)

    @property
    def columns(self) -> int:
        """The columns of the results, in whole fragments."""
        return _whole(self.sizes.width)

    @property
    def is_on_tensor_cores(self) -> bool:
        return self.of_scores.operand != FLOAT32

    @property
    def loaded_values(self) -> Ints:
        """The values that a thread takes from shared memory or from other lanes in a step without tensor
        cores. For each step along a sum, they are two of the left operand for each fragment of rows, and four
        of the right one for each fragment of columns. Shared memory gives one warp a value each in a cycle.
        """
        of_rows, columns = 2 * self.chosen("fragments i"), self.keys_of_warp // SIDE
        of_scores = self.depth * (of_rows + 4 * columns)
        return np.asarray(of_scores + self.keys_of_warp * (of_rows + 4 * (self.columns // SIDE)))

    @property
    def blocks(self) -> Ints:
        return np.asarray(self.sizes.images * -(-self.sizes.queries // self.queries))

    @property
    def registers(self) -> Ints:
        """The registers of a thread."""
        return _registers(self.sizes, self.chosen("fragments i"), self.chosen("fragments j"))

    def fits_registers(self, gpu: Gpu) -> NDArray[np.bool_]:
        threads = self.warps * gpu.warp_size
        return (self.registers <= MAX_REGISTERS) & (threads * self.registers <= gpu.registers)

    @property
    def shared_bytes(self) -> Ints:
        """The shared memory of a block: its queries, and tiles of keys and values."""
        chosen = self.queries, self.keys, self.chosen("stages")
        tiles = _shared_bytes(self.sizes, self.of_scores, self.of_values, *chosen)
        return np.asarray(tiles + np.where(self.parts > 1, self.exchanged_bytes, 0))

    @property
    def exchanged_bytes(self) -> Ints:
        """The shared memory in which warps that share queries pass their sums, maxima and totals."""
        of_lane = self.chosen("fragments i") * (self.columns // SIDE * OF_LANE + 4)
        return np.asarray(4 * LANES * self.warps * of_lane)


def fits_registers(
    sizes: AttentionTile, of_scores: MatrixProduct, of_values: MatrixProduct, gpu: Gpu
) -> bool:
    """Return whether registers and the shared memory of a block suffice for the smallest tile."""
    one = np.ones((), dtype=np.int64)
    shared = _shared_bytes(sizes, of_scores, of_values, SIDE * one, SIDE * one, one)
    return bool(_registers(sizes, one, one) <= MAX_REGISTERS) and bool(shared <= gpu.dynamic_shared_bytes)


def _shared_bytes(
    sizes: AttentionTile,
    of_scores: MatrixProduct,
    of_values: MatrixProduct,
    queries: Ints,
    keys: Ints,
    stages: Ints,
) -> Ints:
    depth, width = _whole(sizes.depth), _whole(sizes.width)
    by_rows = of_scores.second_by_rows, of_values.second_by_rows
    of_query, of_key, of_value = row_skews(of_scores.operand, *by_rows)
    key_rows, key_row = (depth, keys) if by_rows[0] else (keys, depth)
    value_rows, value_row = (keys, width) if by_rows[1] else (width, keys)
    of_step = key_rows * (key_row + of_key) + value_rows * (value_row + of_value)
    return np.asarray((queries * (depth + of_query) + stages * of_step) * sizes.operand_bytes)


def _registers(sizes: AttentionTile, rows: Ints, columns: Ints) -> Ints:
    return np.asarray(OF_LANE * rows * (columns + _whole(sizes.width) // SIDE) + OTHER_REGISTERS)


def _whole(extent: int) -> int:
    return -(-extent // SIDE) * SIDE
