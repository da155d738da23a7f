"""The derivation rule for nodes that a device has special instructions for."""

from __future__ import annotations

from dataclasses import replace

from search.rules.derive import ConditionKind, Rule, State, when
from search.sketches.intrinsics import usable
from search.stages.cpu import Tiled
from search.stages.inlined import Fused

TILING = "SSRSRS"
LEVELS = (1, 2)


def feeds_intrinsic(state: State) -> bool:
    """Whether the current node computes an operand of a tensorized one: instructions read memory, so it can't
    be inlined."""
    readers = {node.name for node in state.dag.consumers(state.current)}
    return any(stage.intrinsic and stage.node in readers for stage in state.stages)


def _tensorize(state: State) -> list[State]:
    """Tiles counted in instructions; their results put out at the end, or tile by tile: into the consumer
    that is fused, or else from a small buffer."""
    intrinsic = usable(state.dag, state.current, state.device)
    assert intrinsic is not None
    plain = Tiled(state.current.name, TILING, intrinsic=intrinsic.name)
    tiles = [replace(plain, epilogue_level=level) for level in LEVELS]
    consumer = state.epilogue()
    if consumer is None:
        return [state.put(plain), *(state.put(replace(tile, cache_write=True)) for tile in tiles)]
    fused = Fused(consumer.name)
    return [state.put(plain), *(state.put(replace(t, epilogue=consumer.name), fused) for t in tiles)]


TENSORIZE = Rule(
    "Tensorize",
    lambda s: when(usable(s.dag, s.current, s.device) is not None, ConditionKind.APPLY),
    _tensorize,
)
