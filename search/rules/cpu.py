"""The derivation rules for CPUs, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search.dag import Node, extent_of
from search.rules.derive import ConditionKind, Rule, State, when
from search.rules.tensorize import TENSORIZE, feeds_intrinsic
from search.sketches.location import host
from search.sketches.predicates import (
    is_strictly_inlineable,
    is_tileable,
    needs_tiling,
    reduces_rows,
    writes_boxes,
)
from search.sketches.stage import Rfactor, Stage
from search.stages.cpu import LoopNest, Tiled, Unrolled, rfactor_lanes
from search.stages.inlined import Fused, Inlined

TILING = "SSRSRS"
REDUCTION = "SRS"
UNROLLED = "SS"
# Below so many results for each core, the cores share a reduction.
RESULTS_PER_CORE = 16
# Partial results of so many or more don't need lengths that divide nothing.
FULL_VECTOR = 8


def _inline(state: State) -> list[State]:
    return [state.put(Inlined(state.current.name))]


def _unroll(state: State) -> list[State]:
    """A sum over a small constant matrix  ->  its axes unrolled, the others tiled in two levels."""
    return [state.put(Unrolled(state.current.name, UNROLLED))]


def _should_rfactor(state: State) -> bool:
    return any(_rfactors(state))


def _rfactor(state: State) -> list[State]:
    """s[i] += a[i, k]  ->  partial[i, v] += a[i, ko*V + v]; s[i] += partial[i, v]"""
    return [state.put(LoopNest(state.current.name, rfactor=half)) for half in _rfactors(state)]


def _rfactors(state: State) -> Iterator[Rfactor]:
    node = state.current
    if node.reducer in (None, "other"):
        return
    results, summed = extent_of(node, node.spatial), extent_of(node, node.reduction)
    few = results <= summed and results <= state.device.cores * RESULTS_PER_CORE
    if reduces_rows(node) and (few or not needs_tiling(node)):
        even = rfactor_lanes(node, Rfactor.INNER)
        if even:
            yield Rfactor.INNER
        if not any(lanes % FULL_VECTOR == 0 for lanes in even) and rfactor_lanes(node, Rfactor.UNEVEN):
            yield Rfactor.UNEVEN
    if few and summed > state.device.cores and rfactor_lanes(node, Rfactor.OUTER):
        yield Rfactor.OUTER


def _tile(state: State) -> list[State]:
    node = state.current
    return [state.put(Tiled(node.name, _structure(node)))]


def _tile_and_fuse(state: State) -> list[State]:
    """conv; relu  ->  tiles of conv, each followed by its tile of relu, at either outer level."""
    consumer = state.epilogue()
    assert consumer is not None
    fused = Fused(consumer.name)
    return [state.put(tile, fused) for tile in _tiles(state.current, consumer.name)]


def _tile_in_cache(state: State) -> list[State]:
    """conv  ->  tiles of conv in a small buffer, each copied out when it is done."""
    return [state.put(replace(tile, cache_write=True)) for tile in _tiles(state.current, None)]


def _tiles(node: Node, epilogue: str | None) -> list[Stage]:
    structure = _structure(node)
    levels = range(1, structure.index("R") + 1)
    return [Tiled(node.name, structure, epilogue, level) for level in levels]


def _structure(node: Node) -> str:
    return TILING if needs_tiling(node) else REDUCTION


def _needs_cache(state: State) -> bool:
    node = state.current
    return needs_tiling(node) and writes_boxes(node) and state.epilogue() is None


def _sums_columns(state: State) -> bool:
    """Whether a plain reduction leaves an axis to vectorize: rows are summed up by partial results."""
    return is_tileable(state.current) and (needs_tiling(state.current) or not _should_rfactor(state))


def _may_move(state: State) -> bool:
    """Whether the nests that read a plain reduction may compute it in their loops."""
    return not needs_tiling(state.current) and host(state.dag, state.stage, state.current) is not None


def _leave(state: State) -> list[State]:
    return [state.put(LoopNest(state.current.name))]


CPU_RULES: tuple[Rule, ...] = (
    Rule(
        "AlwaysInline",
        lambda s: when(not s.is_output and is_strictly_inlineable(s.current) and not feeds_intrinsic(s)),
        _inline,
    ),
    Rule("SimplifyConstTensor", lambda s: when(bool(s.current.constant_axes)), _unroll),
    TENSORIZE,
    Rule("AddRfactor", lambda s: when(_should_rfactor(s), ConditionKind.APPLY), _rfactor),
    Rule(
        "AddCacheWrite",
        lambda s: when(_needs_cache(s), ConditionKind.APPLY),
        _tile_in_cache,
    ),
    Rule(
        "MultiLevelTilingWithFusion",
        lambda s: when(_sums_columns(s) and s.epilogue() is not None, ConditionKind.APPLY),
        _tile_and_fuse,
    ),
    Rule("MultiLevelTiling", lambda s: when(_sums_columns(s), ConditionKind.APPLY), _tile),
    Rule("Skip", lambda s: when(not _sums_columns(s) or _may_move(s)), _leave),
)
