"""The sizes of an attention that a GPU's kernel computes in blocks of queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from search.dag import Dag, extent_of
from search.programs.nest import Floats
from search.sketches.attention import Attention, attention_of
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage

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
