"""A derivation rule: tile small matrix products over fewer levels, so that fewer trials find good tiles."""

from search.dag import extent_of
from search.rules.derive import ConditionKind, Rule, State
from search.sketches.predicates import needs_tiling
from search.stages.cpu import Tiled

MAX_RESULTS = 4096


def is_small_product(state: State) -> ConditionKind:
    node = state.current
    is_small = state.device.kind == "cpu" and extent_of(node, node.spatial) <= MAX_RESULTS
    return ConditionKind.APPLY if is_small and needs_tiling(node) else ConditionKind.SKIP


def tile_once(state: State) -> list[State]:
    """Tile a product once, around its reduction.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]
    ->
        parallel for i0, j0:
          for k, i1, j1: c[i, j] += a[i, k] * b[k, j]
    """
    return [state.put(Tiled(state.current.name, "SRS"))]


TILE_ONCE = Rule("TileOnce", is_small_product, tile_once)
