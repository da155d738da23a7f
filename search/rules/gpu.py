"""The derivation rules for CUDA GPUs, in the order in which they are tried.

AddCacheRead has no rule of its own: what a tiled node reads goes through shared memory, always.
"""

from __future__ import annotations

from dataclasses import replace

from search.dag import Dag, Node, extent_of
from search.rules.derive import ConditionKind, Rule, State, when
from search.sketches.location import aligned, can_inline, readers
from search.sketches.predicates import needs_tiling, writes_boxes
from search.sketches.stage import Placement, Stage
from search.sketches.tensor_core import product
from search.stages.gpu import BlockReduction, GpuTiled, RowKernel, TensorTiled, ThreadKernel, ThreadLocal
from search.stages.inlined import Fused, Inlined

TILING = "SSSRRSRS"
# The epilogue is computed by the threads that computed the tile.
THREAD_LEVEL = 3


def _compute_in_thread(state: State) -> list[State]:
    """gather; sum over a small constant matrix  ->  every thread of the sum gathers what it reads"""
    host = _constant_reader(state)
    assert host is not None
    return [state.put(ThreadLocal(state.current.name, host=host.name))]


def _constant_reader(state: State) -> Node | None:
    """The only reader, if it is a sum over a small constant matrix."""
    node = state.current
    consumers = state.dag.consumers(node)
    if not can_inline(state.dag, node) or not node.reads or len(consumers) != 1:
        return None
    return consumers[0] if consumers[0].constant_axes else None


def _inline(state: State) -> list[State]:
    return [state.put(Inlined(state.current.name))]


def _reduce_across(state: State) -> list[State]:
    """max; exp; sum; divide  ->  a kernel whose blocks take some rows; or one of the reduction alone"""
    node = state.current
    target = _row_host(state)
    if target is None:
        return [state.put(RowKernel(node.name, rows=node.spatial))]
    rows = _rows(state, target)
    across = BlockReduction(node.name, host=target.name)
    return [state.put(across, RowKernel(target.name, rows=rows))]


def _spans_threads(state: State) -> bool:
    node = state.current
    gpu = state.device.gpu
    if gpu is None or not node.reduction or not _is_known(state.dag, node):
        return False
    results, summed = extent_of(node, node.spatial), extent_of(node, node.reduction)
    if needs_tiling(node):
        return results <= gpu.max_threads and results < summed
    return summed > gpu.warp_size


def _is_tiled(node: Node) -> bool:
    """A tile's results stay in registers and are copied out together, as a box."""
    return needs_tiling(node) and writes_boxes(node)


def _is_known(dag: Dag, node: Node) -> bool:
    """Whether TVM can combine the partial results of threads: by one of its reducers, or position and value;
    of types that lanes of a warp exchange. (Others it combines in shared memory without barriers.)"""
    types = [dag.buffer[write.buffer] for write in node.writes]
    exchanged = all(buffer.item_bytes >= 4 or buffer.dtype == "float16" for buffer in types)
    return exchanged and (node.reducer != "other" or len(node.extra_writes) == 1)


def _row_host(state: State) -> Node | None:
    """The node in whose rows the current reduction can be computed: all of its readers belong to it."""
    stages = state.stage
    if state.is_output:
        return None
    hosts = {_kernel_of(stages[reader.name]) for reader in readers(state.dag, stages, state.current)}
    name = hosts.pop() if len(hosts) == 1 else None
    if name is None:
        return None
    target, stage = state.dag.node[name], stages[name]
    is_free = stage.placement is Placement.THREADS and not target.reduction and not target.extra_writes
    rows = _rows(state, target)
    if is_free:
        return target if rows or extent_of(target, target.spatial) == 1 else None
    return target if stage.placement is Placement.ROWS and _same_rows(target, rows, stage.rows) else None


def _kernel_of(stage: Stage) -> str | None:
    """The node whose rows a kernel's blocks take, or may come to take."""
    if stage.placement is Placement.ACROSS:
        return stage.host
    return stage.node if stage.placement in (Placement.ROWS, Placement.THREADS) else None


def _rows(state: State, target: Node) -> tuple[int, ...]:
    """The axes of `target` that the results of the current node move with, all of them; () if they don't."""
    node = state.current
    moves = aligned(state.dag, target, node)
    own = [axis for axis in node.spatial if node.axes[axis].extent > 1]
    whole = all(a in moves and target.axes[moves[a]].extent == node.axes[a].extent for a in own)
    rows = tuple(sorted({moves[axis] for axis in own})) if whole else ()
    return rows if len(rows) == len(own) else ()


def _same_rows(target: Node, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    def moving(axes: tuple[int, ...]) -> set[int]:
        return {axis for axis in axes if target.axes[axis].extent > 1}

    return moving(first) == moving(second)


def _tile_in_cache(state: State) -> list[State]:
    """conv  ->  tiles of conv in registers, each copied out when it is done"""
    return [state.put(replace(_tile(state.current), cache_write=True))]


def _tile_and_fuse(state: State) -> list[State]:
    """conv; relu  ->  tiles of conv in registers, each followed by its tile of relu"""
    consumer = _epilogue(state)
    assert consumer is not None
    fused = Fused(consumer.name)
    return [state.put(replace(_tile(state.current), epilogue=consumer.name), fused)]


def _tile(node: Node) -> Stage:
    shared = tuple(dict.fromkeys(read.buffer for read in node.reads if read.buffer != node.write.buffer))
    return GpuTiled(node.name, TILING, epilogue_level=THREAD_LEVEL, shared=shared)


def _use_tensor_cores(state: State) -> list[State]:
    """matmul of float16 or int8  ->  matrix instructions; the elementwise consumer while copying out"""
    node, consumer = state.current, _epilogue(state)
    tensor = TensorTiled(node.name, shared=tuple(read.buffer for read in node.reads))
    if consumer is None:
        return [state.put(tensor)]
    fused = Fused(consumer.name)
    return [state.put(replace(tensor, epilogue=consumer.name), fused)]


def _has_tensor_cores(state: State) -> bool:
    gpu = state.device.gpu
    return gpu is not None and product(state.dag, state.current, gpu) is not None


def _epilogue(state: State) -> Node | None:
    """The elementwise consumer that the current node's kernel can compute: one that is still a kernel of its
    own and reads no other kernel that comes later."""
    consumer = state.epilogue()
    stages = state.stage
    if consumer is None or stages[consumer.name].placement is not Placement.THREADS:
        return None
    later = (s for s in state.stages if s.placement is not Placement.INLINE and s.node != consumer.name)
    reads_later = any(consumer in readers(state.dag, stages, state.dag.node[s.node]) for s in later)
    return None if reads_later else consumer


def _spread(state: State) -> list[State]:
    """A kernel of its own, which computes the elementwise consumer of a reduction too."""
    node = state.current
    consumer = _epilogue(state) if node.reduction and not node.extra_writes else None
    if consumer is None:
        return [state.put(ThreadKernel(node.name))]
    fused = Fused(consumer.name)
    return [state.put(ThreadKernel(node.name, epilogue=consumer.name), fused)]


GPU_RULES: tuple[Rule, ...] = (
    Rule("SpecialComputeLocation", lambda s: when(_constant_reader(s) is not None), _compute_in_thread),
    Rule("AlwaysInline", lambda s: when(can_inline(s.dag, s.current)), _inline),
    Rule("SimplifyConstTensor", lambda s: when(bool(s.current.constant_axes)), _spread),
    Rule("CrossThreadReduction", lambda s: when(_spans_threads(s), ConditionKind.APPLY), _reduce_across),
    Rule("TensorCores", lambda s: when(_has_tensor_cores(s), ConditionKind.APPLY), _use_tensor_cores),
    Rule(
        "AddCacheWrite",
        lambda s: when(_is_tiled(s.current) and _epilogue(s) is None),
        _tile_in_cache,
    ),
    Rule("MultiLevelTilingWithFusion", lambda s: when(_is_tiled(s.current)), _tile_and_fuse),
    Rule("Skip", lambda s: when(True), _spread),
)
