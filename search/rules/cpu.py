"""The derivation rules for CPUs, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search.dag import Node, extent_of
from search.rules.derive import ConditionKind, Rule, State, when
from search.rules.tensorize import TENSORIZE, feeds_intrinsic
from search.sketches.attention_blocks import attention_blocks
from search.sketches.intrinsics import Intrinsic, best_intrinsic, match_roles
from search.sketches.location import compute_at_of
from search.sketches.predicates import (
    is_strictly_inlineable,
    is_tileable,
    needs_tiling,
    reduces_rows,
    writes_boxes,
)
from search.sketches.row_blocks import RowBlocks
from search.sketches.stage import Rfactor, Stage, StageKind
from search.sketches.variables import rfactor_lanes
from search.sketches.winograd_blocks import winograd_blocks
from search.stages.cpu import LoopNest, RowBlock, Tiled, Unrolled, extent_in_block
from search.stages.inlined import Fused, Inlined

TILING = "SSRSRS"
REDUCTION = "SRS"
UNROLLED = "SS"
# With fewer results per core, the cores share a reduction.
RESULTS_PER_CORE = 16
# If the number of partial results is a multiple of this, they fill vectors, and no uneven rfactor is tried.
FULL_VECTOR = 8


def always_inline(state: State) -> list[State]:
    """Inline a cheap node into its consumers.

        for i: b[i] = a[i] + 1
        for i: c[i] = 2 * b[i]
    ->
        for i: c[i] = 2 * (a[i] + 1)
    """
    return [state.put(Inlined(state.current.name))]


def simplify_const_tensor(state: State) -> list[State]:
    """Unroll the axes over small constant matrices, and tile the others in two levels.

        for p, x:
          for r: v[x, p] += d[r, p] * B[r, x]        # B is constant
    ->
        parallel for p0:
          for p1: v[0, p] = d[0, p] * B[0, 0] + d[1, p] * B[1, 0] + ...; v[1, p] = ...
    """
    return [state.put(Unrolled(state.current.name, UNROLLED))]


def add_rfactor(state: State) -> list[State]:
    """Reduce into partial results, and reduce these in a second nest.

        for i, k: s[i] += a[i, k]
    ->
        for i, k0:
          for k1: partial[i, k1] += a[i, k0, k1]     # INNER: k1 fills vectors
        for i, k1: s[i] += partial[i, k1]
    or
        parallel for k0:
          for i, k1: partial[i, k0] += a[i, k0, k1]  # OUTER: the cores share k0
        for i, k0: s[i] += partial[i, k0]
    """
    return [state.put(LoopNest(state.current.name, rfactor=half)) for half in _rfactors(state)]


def _rfactors(state: State) -> Iterator[Rfactor]:
    """Yield the halves of the last reduction loop that are worth factoring."""
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


def multi_level_tiling(state: State) -> list[State]:
    """Tile a node over several levels.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]
    ->
        parallel for i0, j0:
          for i1, j1:
            for k0, i2, j2:
              for k1, i3, j3: c[i, j] += a[i, k] * b[k, j]
    """
    node = state.current
    return [state.put(Tiled(node.name, _structure(node)))]


def multi_level_tiling_with_fusion(state: State) -> list[State]:
    """Tile a node, and compute the elementwise consumer after each tile of the first or second level.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]
        for i, j: d[i, j] = max(c[i, j], 0)
    ->
        parallel for i0, j0:
          for i1, j1, k0, i2, j2, k1, i3, j3: c[i, j] += a[i, k] * b[k, j]
          for i1, i2, i3, j1, j2, j3: d[i, j] = max(c[i, j], 0)
    """
    consumer = state.epilogue()
    assert consumer is not None
    return [state.put(tile, Fused(consumer.name)) for tile in _tiles(state.current, consumer.name)]


def add_cache_write(state: State) -> list[State]:
    """Tile a node in a small buffer, and copy out each tile of the first or second level.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]
    ->
        parallel for i0, j0:
          for i1, j1, k0, i2, j2, k1, i3, j3: cache[i, j] += a[i, k] * b[k, j]
          for i1, i2, i3, j1, j2, j3: c[i, j] = cache[i, j]
    """
    return [state.put(replace(tile, cache_write=True)) for tile in _tiles(state.current, None)]


def skip(state: State) -> list[State]:
    """Leave a node as a nest. A variable inlines it or moves it into its consumer's loops.

        for i: m[i] = max(x[i, 0], ..., x[i, 9])
        for i, j: e[i, j] = exp(x[i, j] - m[i])
    ->
        for i:
          m[i] = max(x[i, 0], ..., x[i, 9])          # at location 1; or as before, at "root"
          for j: e[i, j] = exp(x[i, j] - m[i])
    """
    return [state.put(LoopNest(state.current.name))]


def compute_in_blocks(state: State) -> list[State]:
    """Compute a chain for a block of rows at a time: Winograd's transform, product and inverse transform, or
    attention's scores, softmax and weighted values.

        parallel for p, q: t[.., p, q] = transform(d[p, q])
        parallel for p, q: m[.., p, q] = t[.., p, q] * w
        parallel for p, q: y[p, q] = inverse(m[.., p, q])
    ->
        parallel for p0:
          for p1, q: t[.., p1, q] = transform(d[p0, p1, q])
          for p1, q: m[.., p1, q] = t[.., p1, q] * w
          for p1, q: y[p0, p1, q] = inverse(m[.., p1, q])
    """
    chain = _row_blocks(state, state.current)
    assert chain is not None
    output = state.current.name
    return [
        state.put(
            RowBlock(
                output,
                rows=chain.rows[output],
                blocks=blocks,
                channels=chain.channels.get(output, ()),
                channel_blocks=channel_blocks,
            )
        )
        for blocks, channel_blocks in chain.cuts
    ]


def follow_blocks(state: State) -> list[State]:
    """Compute a node in the blocks of its chain, by a dot product with constant columns if one matches."""
    stage = _stage_in_blocks(state)
    assert stage is not None
    intrinsic = best_intrinsic(state.dag, state.current, state.device) if stage.structure == TILING else None
    if isinstance(intrinsic, Intrinsic) and intrinsic.tall == 1:
        roles = match_roles(state.dag, state.current, intrinsic)
        assert roles is not None
        lanes = extent_in_block(state.current, stage, roles.lane)
        if state.dag.buffer[roles.columns].constant and lanes % intrinsic.lanes == 0:
            stage = replace(stage, intrinsic=intrinsic.name)
    return [state.put(stage)]


def _blocks_condition(state: State) -> ConditionKind:
    chain = _row_blocks(state, state.current) if state.is_output else None
    if chain is None:
        return ConditionKind.SKIP
    return ConditionKind.APPLY_AND_SKIP_REST if chain.is_best else ConditionKind.APPLY


def _row_blocks(state: State, output: Node) -> RowBlocks | None:
    """Return the chain of blocks that ends at an output; None without one."""
    device = state.device
    found = winograd_blocks(state.dag, output, device.cores)
    return found or attention_blocks(state.dag, output, device.l2_bytes)


def _stage_in_blocks(state: State) -> Stage | None:
    """Return the stage of a node in a blocked chain; None for other nodes."""
    node = state.current
    for last in state.stages:
        chain = _row_blocks(state, state.dag.node[last.node]) if last.kind is StageKind.BLOCKS else None
        kind = chain.kinds.get(node.name) if chain is not None else None
        if chain is None or kind is None:
            continue
        if kind is StageKind.INLINE:
            return Inlined(node.name)
        stage, structure = {
            StageKind.TILED: (Tiled, TILING),
            StageKind.UNROLLED: (Unrolled, UNROLLED),
            StageKind.NEST: (LoopNest, ""),
        }[kind]
        return stage(
            node.name,
            structure,
            rfactor=Rfactor.INNER if kind is StageKind.NEST and node.reduction else Rfactor.NONE,
            compute_at=last.node,
            rows=chain.rows[node.name],
            blocks=last.blocks,
            channels=chain.channels.get(node.name, ()),
            channel_blocks=last.channel_blocks,
        )
    return None


def _tiles(node: Node, epilogue: str | None) -> list[Stage]:
    """Return a tiled stage for every spatial level before the first reduction level at which an epilogue can
    be computed.
    """
    structure = _structure(node)
    levels = range(1, structure.index("R") + 1)
    return [Tiled(node.name, structure, epilogue, level) for level in levels]


def _structure(node: Node) -> str:
    return TILING if needs_tiling(node) else REDUCTION


def _should_rfactor(state: State) -> bool:
    return any(_rfactors(state))


def _needs_cache_write(state: State) -> bool:
    node = state.current
    return needs_tiling(node) and writes_boxes(node) and state.epilogue() is None


def _should_tile(state: State) -> bool:
    """Return whether tiles reuse data or, in a plain reduction, have an axis to vectorize. (With rfactor, the
    partial results fill the vectors instead.)
    """
    return is_tileable(state.current) and (needs_tiling(state.current) or not _should_rfactor(state))


def _should_skip(state: State) -> bool:
    """Return whether a node isn't tiled, or is a plain reduction that readers may compute in their loops."""
    may_move = (
        not needs_tiling(state.current) and compute_at_of(state.dag, state.stage, state.current) is not None
    )
    return may_move or not _should_tile(state)


CPU_RULES: tuple[Rule, ...] = (
    Rule("FollowBlocks", lambda s: when(_stage_in_blocks(s) is not None), follow_blocks),
    Rule("ComputeInBlocks", _blocks_condition, compute_in_blocks),
    Rule(
        "AlwaysInline",
        lambda s: when(not s.is_output and is_strictly_inlineable(s.current) and not feeds_intrinsic(s)),
        always_inline,
    ),
    Rule("SimplifyConstTensor", lambda s: when(bool(s.current.constant_axes)), simplify_const_tensor),
    TENSORIZE,
    Rule("AddRfactor", lambda s: when(_should_rfactor(s), ConditionKind.APPLY), add_rfactor),
    Rule("AddCacheWrite", lambda s: when(_needs_cache_write(s), ConditionKind.APPLY), add_cache_write),
    Rule(
        "MultiLevelTilingWithFusion",
        lambda s: when(_should_tile(s) and s.epilogue() is not None, ConditionKind.APPLY),
        multi_level_tiling_with_fusion,
    ),
    Rule("MultiLevelTiling", lambda s: when(_should_tile(s), ConditionKind.APPLY), multi_level_tiling),
    Rule("Skip", lambda s: when(_should_skip(s)), skip),
)
