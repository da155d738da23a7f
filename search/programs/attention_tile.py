"""The sizes of an attention that a GPU's kernel computes in blocks of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from search.dag import Dag, extent_of
from search.programs.nest import Floats
from search.programs.program import Population
from search.programs.tensor_tile import padded
from search.sketches.attention import Attention, attention_of, attention_with_products
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage
from search.sketches.tensor_core import SIDE, WIDE_SKEW, MatrixProduct

_Count = TypeVar("_Count", int, Ints, Floats)


@dataclass(frozen=True)
class AttentionTile:
    """The numbers of images, queries and keys, the `depth` of a score's sum, the `width` of a result, and the
    bytes of a score and of an operand.
    """

    images: int
    queries: int
    keys: int
    depth: int
    width: int
    item_bytes: int
    operand_bytes: int

    @classmethod
    def of(cls, dag: Dag, attention: Attention) -> AttentionTile:
        output, rows = attention.output, (*attention.images, attention.queries)
        return cls(
            images=extent_of(output, attention.images),
            queries=output.axes[attention.queries].extent,
            keys=extent_of(attention.values, attention.values.reduction),
            depth=extent_of(attention.scores, attention.scores.reduction),
            width=extent_of(output, [axis for axis in output.spatial if axis not in rows]),
            item_bytes=dag.buffer[attention.scores.write.buffer].item_bytes,
            operand_bytes=dag.buffer[attention.scores.reads[0].buffer].item_bytes,
        )

    def shared_bytes(self, queries: _Count) -> _Count:
        """Return the bytes of a block's scores and weights for a number of queries."""
        return 2 * queries * self.keys * self.item_bytes


def attention_tile(sketch: Sketch, stage: Stage) -> AttentionTile:
    """Return the sizes of the attention that a stage computes."""
    found = attention_of(sketch.dag, sketch.dag.node[stage.node])
    assert found is not None, "the stage computes an attention"
    return AttentionTile.of(sketch.dag, found)


@dataclass(frozen=True)
class TensorAttentionTile:
    """An attention on tensor cores; every quantity but the sizes is [programs]."""

    population: Population
    stage: Stage
    sizes: AttentionTile
    of_scores: MatrixProduct
    of_values: MatrixProduct

    @classmethod
    def of(cls, population: Population, stage: Stage) -> TensorAttentionTile:
        dag = population.sketch.dag
        found, of_scores, of_values = attention_with_products(
            dag, dag.node[stage.node], population.sketch.gpu
        )
        return cls(population, stage, AttentionTile.of(dag, found), of_scores, of_values)

    def chosen(self, kind: str) -> Ints:
        return self.population.chosen(self.stage.node, kind)

    @property
    def warps(self) -> Ints:
        return np.asarray(self.chosen("warps i") * self.chosen("warps j"))

    @property
    def queries(self) -> Ints:
        """The queries of a block."""
        return SIDE * self.chosen("warps i") * self.chosen("fragments i")

    @property
    def keys(self) -> Ints:
        """The keys whose scores a block computes between two fetches."""
        return SIDE * self.chosen("warps j") * self.chosen("fragments j")

    @property
    def weighted(self) -> Ints:
        """The keys whose values a block adds up between two fetches."""
        return self.of_values.depth * self.chosen("fragments k")

    @property
    def columns(self) -> Ints:
        """The columns of a block's results, in whole fragments for each warp."""
        return _whole(self.sizes.width, SIDE * self.chosen("warps j"))

    @property
    def depth(self) -> Ints:
        """The length of a score's sum, in whole instructions."""
        return _whole(self.sizes.depth, np.asarray(self.of_scores.depth))

    @property
    def fragments(self) -> Ints:
        """The most fragments of sums that a warp holds."""
        of_values = self.columns // (SIDE * self.chosen("warps j"))
        return np.asarray(self.chosen("fragments i") * np.maximum(self.chosen("fragments j"), of_values))

    @property
    def blocks(self) -> Ints:
        return np.asarray(self.sizes.images * -(-self.sizes.queries // self.queries))

    @property
    def shared_bytes(self) -> Ints:
        """The shared memory of a block with queries, scores, weights, results and the stages of both fetches.
        TVM may reuse some of it.
        """
        item, stages = self.sizes.operand_bytes, self.chosen("stages")
        (of_query, of_key), (of_weight, of_value) = self.of_scores.skews, self.of_values.skews
        key_rows, key_row = (
            (self.depth, self.keys) if self.of_scores.second_by_rows else (self.keys, self.depth)
        )
        value_rows, value_row = (
            (self.weighted, self.columns) if self.of_values.second_by_rows else (self.columns, self.weighted)
        )
        scores = padded(_whole(self.sizes.keys, self.keys), WIDE_SKEW)
        weights = padded(_whole(self.sizes.keys, self.weighted), of_weight)
        wide = (scores + padded(self.columns, WIDE_SKEW)) * self.sizes.item_bytes
        of_query_bytes = self.queries * (wide + (padded(self.depth, of_query) + weights) * item)
        fetched = key_rows * padded(key_row, of_key) + value_rows * padded(value_row, of_value)
        return np.asarray(of_query_bytes + stages * fetched * item)


def _whole(extent: int, tile: Ints) -> Ints:
    """Return an extent padded to whole tiles."""
    return np.asarray(-(-extent // tile) * tile)
