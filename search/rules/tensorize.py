"""The derivation rule for nodes that match a CPU's dot-product instructions."""

from __future__ import annotations

from dataclasses import replace

from search.rules.derive import ConditionKind, Rule, State, when
from search.sketches.intrinsics import best_intrinsics
from search.stages.cpu import Tiled
from search.stages.inlined import Fused

TILING = "SSRSRS"
EPILOGUE_LEVELS = (1, 2)


def feeds_intrinsic(state: State) -> bool:
    """Return whether a tensorized node reads the current one. It can't be inlined then, because instructions
    read memory.
    """
    readers = {node.name for node in state.dag.consumers(state.current)}
    return any(stage.intrinsic and stage.node in readers for stage in state.stages)


def tensorize(state: State) -> list[State]:
    """Tile a node whose innermost tiles consist of instructions.

        for i, j, k: c[i, j] += a[i, k] * b[j, k]    # c int32, a uint8, b int8
    ->
        parallel for i0, j0:
          for i1, j1, k0, i2, j2, k1, i3, j3: dot_16x4(c[i, j:j+16], a[i, k:k+4], b[j:j+16, k:k+4])

    An elementwise consumer, or else a copy out of a small buffer, may follow each tile of the first or second
    level.
    """
    return [
        put
        for intrinsic in best_intrinsics(state.dag, state.current, state.device)
        for put in _tiled_by(state, intrinsic.name)
    ]


def _tiled_by(state: State, intrinsic: str) -> list[State]:
    plain = Tiled(state.current.name, TILING, intrinsic=intrinsic)
    tiles = [replace(plain, epilogue_level=level) for level in EPILOGUE_LEVELS]
    consumer = state.epilogue()
    if consumer is None:
        return [state.put(plain), *(state.put(replace(tile, cache_write=True)) for tile in tiles)]
    fused = Fused(consumer.name)
    return [state.put(plain), *(state.put(replace(tile, epilogue=consumer.name), fused) for tile in tiles)]


TENSORIZE = Rule(
    "Tensorize",
    lambda s: when(bool(best_intrinsics(s.dag, s.current, s.device)), ConditionKind.APPLY),
    tensorize,
)
