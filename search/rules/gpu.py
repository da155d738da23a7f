"""The derivation rules for CUDA GPUs, in the order in which they are tried.

There is no separate AddCacheRead rule: a tiled node always reads its operands from shared memory. In the
examples, `blocks`, `vthreads` and `threads` are the bindings of loops.
"""

from __future__ import annotations

from dataclasses import replace

from core.job import TF32
from core.profile import FLOAT32
from search.dag import Dag, Node, extent_of
from search.programs.attention_tile import AttentionTile
from search.programs.online_attention_tile import fits_registers
from search.rules.derive import ConditionKind, Rule, State, when
from search.sketches.attention import Attention, attention_of, attention_products, is_softmax
from search.sketches.location import aligned_axes, can_inline, readers
from search.sketches.predicates import needs_tiling, writes_boxes
from search.sketches.row_registers import along_row, fills_row, readers_of_buffer
from search.sketches.stage import Stage, StageKind
from search.sketches.tensor_core import SIDE, match_product
from search.sketches.warpgroups import match_warpgroups
from search.stages.gpu import (
    Attended,
    AttentionKernel,
    BlockReduction,
    GpuTiled,
    KeptInRegisters,
    OnlineAttention,
    RowKernel,
    TensorAttention,
    TensorTiled,
    ThreadKernel,
    ThreadLocal,
    WarpgroupTiled,
)
from search.stages.inlined import Fused, Inlined

TILING = "SSSRRSRS"
# The threads of a tile also compute its epilogue.
THREAD_LEVEL = 3


def fused_attention(state: State) -> list[State]:
    """Compute a whole attention in one kernel. Its scores never leave a block's shared memory.

        for b, q, k, d: s[b, q, k] += query[b, q, d] * key[b, d, k]
        for b, q, k: m[b, q] = max(m[b, q], s[b, q, k])
        for b, q, k: l[b, q] += exp(s[b, q, k] - m[b, q])
        for b, q, k: p[b, q, k] = exp(s[b, q, k] - m[b, q]) / l[b, q]
        for b, q, e, k: v[b, q, e] += p[b, q, k] * value[b, k, e]
        for q, b, e: y[q, b, e] = v[b, q, e]
    ->
        blocks for b, q0:
          warps for q1; threads for k: s[q1, k] += query[b, q, d] * key[b, d, k]
          warps for q1; threads for k: m, l and p[q1, k]
          warps for q1; threads for e: y[q, b, e] = sum over k of p[q1, k] * value[b, k, e]
    """
    return [state.put(AttentionKernel(state.current.name))]


def tensor_attention(state: State) -> list[State]:
    """Compute a whole attention in one kernel, both products on tensor cores.

        for b, q, k, d: s[b, q, k] += query[b, q, d] * key[b, d, k]
        for b, q, k: p[b, q, k] = softmax(s[b, q, k])
        for b, q, e, k: v[b, q, e] += p[b, q, k] * value[b, k, e]
        for q, b, e: y[q, b, e] = v[b, q, e]
    ->
        blocks for b, q0:
          for k0:
            fetch key[b, d, k] of the block into shared memory
            warps for q1, k1: s[q1, k] += query[b, q, d] * key[b, d, k], in units of 16 x 16 x 16
          warps for q1; threads for k: p[q1, k] = softmax(s[q1, k])
          warps for q1, e1:
            for k0:
              fetch value[b, k, e] into shared memory
              v[q1, e] += p[q1, k] * value[b, k, e], in units of 16 x 16 x 16
            threads for q, e: y[q, b, e] = v[q1, e]
    """
    return [state.put(TensorAttention(state.current.name, shared=_attention_operands(state)))]


def online_attention(state: State) -> list[State]:
    """Compute a whole attention in one kernel with an online softmax, both products on tensor cores or, in
    float32, on the others. Scores and weights stay in registers.

        for b, q, k, d: s[b, q, k] += query[b, q, d] * key[b, d, k]
        for b, q, k: p[b, q, k] = softmax(s[b, q, k])
        for b, q, e, k: v[b, q, e] += p[b, q, k] * value[b, k, e]
        for q, b, e: y[q, b, e] = v[b, q, e]
    ->
        blocks for b, q0; warps for q1:
          for k0:
            fetch key[b, d, k] and value[b, k, e] of the block into shared memory
            s[q1, k] = sum of query[b, q, d] * key[b, d, k], in units of 16 x 16 x 16
            n[q1] = max(m[q1], s[q1, k]); p[q1, k] = exp(s[q1, k] - n[q1])
            l[q1] = l[q1] * exp(m[q1] - n[q1]) + sum of p[q1, k]
            v[q1, e] = v[q1, e] * exp(m[q1] - n[q1]) + sum of p[q1, k] * value[b, k, e]
            m[q1] = n[q1]
          y[q, b, e] = v[q1, e] / l[q1]
    """
    return [state.put(OnlineAttention(state.current.name, shared=_attention_operands(state)))]


def follow_attention(state: State) -> list[State]:
    """Compute a node in the kernel of its attention."""
    found = _attention_around(state)
    assert found is not None
    node = state.current
    inside = Attended(node.name, compute_at=found.output.name)
    return [state.put(inside if node in found.members else Inlined(node.name))]


def special_compute_location(state: State) -> list[State]:
    """Let every thread of a sum over a small constant matrix compute its operands.

        for r, p: t[r, p] = d[2 * p + r]
        for x, p, r: v[x, p] += t[r, p] * B[r, x]    # B is constant
    ->
        threads for p:
          for r: t[r] = d[2 * p + r]
          v[0, p] = t[0] * B[0, 0] + t[1] * B[1, 0] + ...; v[1, p] = ...
    """
    compute_at = _constant_reader(state)
    assert compute_at is not None
    return [state.put(ThreadLocal(state.current.name, compute_at=compute_at.name))]


def always_inline(state: State) -> list[State]:
    """Inline a node into its consumers.

        for i: b[i] = a[i] + 1
        for i: c[i] = 2 * b[i]
    ->
        for i: c[i] = 2 * (a[i] + 1)
    """
    return [state.put(Inlined(state.current.name))]


def cross_thread_reduction(state: State) -> list[State]:
    """Reduce rows with all threads of a block, in the kernel of the node that reads the results. Without such
    a node, the reduction gets its own kernel.

        for i, k: m[i] = max(m[i], x[i, k])
        for i, j: y[i, j] = x[i, j] - m[i]
    ->
        blocks for i:
          threads for k: m[i] = max(m[i], x[i, k])
          threads for j: y[i, j] = x[i, j] - m[i]

    Rows that threads share evenly may also be kept in their registers:

        blocks for i:
          threads for k: r[k] = x[i, k]              # in vectors
          threads for k: m[i] = max(m[i], r[k])
          threads for j: y[i, j] = r[j] - m[i]       # in vectors
    """
    node = state.current
    target = _row_kernel_of(state)
    if target is None:
        kernel, inside = RowKernel(node.name, rows=node.spatial), list[Stage]()
    else:
        kernel = RowKernel(target.name, rows=_rows(state, target))
        inside = [BlockReduction(node.name, compute_at=target.name)]
        before = state.stage[target.name]
        if before.kind is StageKind.ROWS:
            return [state.put(*inside)]
    placed = state.put(*inside, kernel)
    if not _fits_registers(placed, node, kernel):
        return [placed]
    return [state.put(*inside, replace(kernel, in_registers=True)), placed]


def keep_in_registers(state: State) -> list[State]:
    """Compute a node once for all nodes of a row kernel that read it.

        blocks for i:
          threads for k: s[i] += exp(x[i, k])
          threads for j: y[i, j] = exp(x[i, j]) / s[i]
    ->
        blocks for i:
          threads for k: e[k] = exp(x[i, k])         # in registers
          threads for k: s[i] += e[k]
          threads for j: y[i, j] = e[j] / s[i]
    """
    (kernel,) = _kernels_of_readers(state)
    assert kernel is not None
    return [state.put(KeptInRegisters(state.current.name, compute_at=kernel))]


def warpgroups(state: State) -> list[State]:
    """Compute a large matrix product with the tensor cores of compute capability 9.0, which read the operands
    in shared memory, and its elementwise consumer during the copy to memory.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]    # a and b float16, bfloat16, or int8 with b[j, k]
        for i, j: d[i, j] = max(c[i, j], 0)
    ->
        blocks for i0, j0:
          for k0:
            fetch a[i, k] and b[k, j] of a later k0 into shared memory
            warpgroups for i1: c[i, j] += a[i, k] * b[k, j], in units of 64 x 256 x 16
          threads for i, j: d[i, j] = max(c[i, j], 0)
    """
    return [_on_tensor_cores(state, WarpgroupTiled)]


def tensor_cores(state: State) -> list[State]:
    """Compute a matrix product with tensor cores, and its elementwise consumer during the copy to memory.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]    # a and b float16, bfloat16, int8, or rounded to TF32
        for i, j: d[i, j] = max(c[i, j], 0)
    ->
        blocks for i0, j0:
          for k0:
            fetch a[i, k] and b[k, j] of the block into shared memory
            warps for i1, j1: c[i, j] += a[i, k] * b[k, j], in units of 16 x 16 x 16
          threads for i, j: d[i, j] = max(c[i, j], 0)
    """
    return [_on_tensor_cores(state, TensorTiled)]


def add_cache_write(state: State) -> list[State]:
    """Tile a node in registers, and copy the tiles out.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]
    ->
        blocks for i0, j0; vthreads for i1, j1; threads for i2, j2:
          for k0:
            fetch a[i, k] and b[k, j] of the block into shared memory
            for k1, i3, j3, k2, i4, j4: registers[i, j] += a[i, k] * b[k, j]
          for i3, i4, j3, j4: c[i, j] = registers[i, j]
    """
    return [state.put(replace(_tile(state.current), cache_write=True))]


def multi_level_tiling_with_fusion(state: State) -> list[State]:
    """Tile a node in registers, and compute the elementwise consumer from there.

        for i, j, k: c[i, j] += a[i, k] * b[k, j]
        for i, j: d[i, j] = max(c[i, j], 0)
    ->
        blocks for i0, j0; vthreads for i1, j1; threads for i2, j2:
          for k0, k1, i3, j3, k2, i4, j4: c[i, j] += a[i, k] * b[k, j]
          for i3, i4, j3, j4: d[i, j] = max(c[i, j], 0)
    """
    consumer = _fusible_epilogue(state)
    assert consumer is not None
    return [state.put(replace(_tile(state.current), epilogue=consumer.name), Fused(consumer.name))]


def spread_over_threads(state: State) -> list[State]:
    """Make a node a separate kernel. A reduction's kernel also computes the elementwise consumer.

        for i, j: b[i, j] = exp(a[i, j])
    ->
        blocks for ij0:
          threads for ij1: b[ij] = exp(a[ij])        # i and j are fused
    """
    node = state.current
    consumer = _fusible_epilogue(state) if node.reduction and not node.extra_writes else None
    if consumer is None:
        return [state.put(ThreadKernel(node.name))]
    return [state.put(ThreadKernel(node.name, epilogue=consumer.name), Fused(consumer.name))]


def _starts_attention(state: State) -> bool:
    """Return whether an attention ends here whose sums are float32 and whose rows of scores fit shared
    memory. Operands, weights and results may be halves.
    """
    gpu = state.device.gpu
    found = attention_of(state.dag, state.current) if state.is_output else None
    if gpu is None or found is None:
        return False
    if any(node.rounds_to for node in found.members):
        return False
    types = {node.name: state.dag.buffer[node.write.buffer].dtype for node in (*found.members, found.output)}
    in_float32 = {types[node.name] for node in found.members if node is not found.weights} == {"float32"}
    fits = AttentionTile.of(state.dag, found).shared_bytes(1) <= gpu.dynamic_shared_bytes
    return in_float32 and fits and {*types.values()} <= {"float32", "float16"}


def _starts_tensor_attention(state: State) -> bool:
    """Return whether an attention ends here whose softmax is computed in float32 and whose products tensor
    cores compute in float16. The scores of 16 queries must fit shared memory.
    """
    gpu = state.device.gpu
    found = attention_of(state.dag, state.current) if state.is_output else None
    if gpu is None or found is None:
        return False
    products = attention_products(state.dag, found, gpu)
    if products is None or {product.operand for product in products} != {"float16"}:
        return False
    softmax = {state.dag.buffer[node.write.buffer].dtype for node in (found.stored, *found.sums)}
    tile = AttentionTile.of(state.dag, found)
    least = SIDE * tile.keys * (tile.item_bytes + tile.operand_bytes)
    return softmax == {"float32"} and least <= gpu.dynamic_shared_bytes


def _starts_online_attention(state: State) -> bool:
    """Return whether an attention ends here whose products are float32, or on tensor cores float16, bfloat16
    or TF32, and whose weights are a softmax, computed in float32. A warp's registers must hold 16 queries.
    """
    gpu = state.device.gpu
    found = attention_of(state.dag, state.current) if state.is_output else None
    if gpu is None or found is None or not is_softmax(state.dag, found):
        return False
    products = attention_products(state.dag, found, gpu, is_grouped=True)
    operands = {product.operand for product in products or ()}
    if products is None or len(operands) != 1 or not operands <= {"float16", "bfloat16", TF32, FLOAT32}:
        return False
    softmax = {state.dag.buffer[node.write.buffer].dtype for node in (found.stored, *found.sums)}
    tile = AttentionTile.of(state.dag, found)
    return softmax == {"float32"} and fits_registers(tile, *products, gpu)


def _attention_operands(state: State) -> tuple[str, ...]:
    """Return the queries, keys and values of an attention whose products are matrix products."""
    found = attention_of(state.dag, state.current)
    assert found is not None
    assert state.device.gpu is not None
    products = attention_products(state.dag, found, state.device.gpu, is_grouped=True)
    assert products is not None
    of_scores, of_values = products
    fetched = [found.scores.reads[index] for index in (of_scores.first, of_scores.second)]
    fetched.append(found.values.reads[of_values.second])
    return tuple(dict.fromkeys(read.buffer for read in fetched))


def _attention_around(state: State) -> Attention | None:
    """Return the attention in whose kernel the current node is computed."""
    for stage in state.stages:
        if stage.kind in (StageKind.ATTENTION, StageKind.TENSOR_ATTENTION, StageKind.ONLINE_ATTENTION):
            return attention_of(state.dag, state.dag.node[stage.node])
    return None


def _on_tensor_cores(state: State, kind: type[Stage]) -> State:
    node, consumer = state.current, _fusible_epilogue(state)
    tensor = kind(node.name, shared=tuple(read.buffer for read in node.reads))
    if consumer is None:
        return state.put(tensor)
    return state.put(replace(tensor, epilogue=consumer.name), Fused(consumer.name))


def _tile(node: Node) -> Stage:
    shared = tuple(dict.fromkeys(read.buffer for read in node.reads if read.buffer != node.write.buffer))
    return GpuTiled(node.name, TILING, epilogue_level=THREAD_LEVEL, shared=shared)


def _constant_reader(state: State) -> Node | None:
    """Return a node's only reader if that is a sum over a small constant matrix."""
    node = state.current
    consumers = state.dag.consumers(node)
    if not can_inline(state.dag, node) or not node.reads or len(consumers) != 1:
        return None
    return consumers[0] if consumers[0].constant_axes else None


def _should_reduce_across_threads(state: State) -> bool:
    node = state.current
    gpu = state.device.gpu
    if gpu is None or not node.reduction or not _can_combine(state.dag, node):
        return False
    results, summed = extent_of(node, node.spatial), extent_of(node, node.reduction)
    if needs_tiling(node):
        return results <= gpu.max_threads and results < summed
    return summed > gpu.warp_size


def _can_combine(dag: Dag, node: Node) -> bool:
    """Return whether TVM can combine the partial results of threads.

    It supports its own reducers, and pairs of position and value. The lanes of a warp must be able to
    exchange their types: TVM combines others in shared memory without barriers.
    """
    types = [dag.buffer[write.buffer] for write in node.writes]
    exchangeable = all(buffer.item_bytes >= 4 or buffer.dtype == "float16" for buffer in types)
    return exchangeable and (node.reducer != "other" or len(node.extra_writes) == 1)


def _row_kernel_of(state: State) -> Node | None:
    """Return the row kernel's node that can compute the current reduction; None unless all readers of its
    results belong to that kernel.
    """
    if state.is_output:
        return None
    stages = state.stage
    kernels = _kernels_of_readers(state)
    name = kernels.pop() if len(kernels) == 1 else None
    if name is None:
        return None
    target, stage, rows = state.dag.node[name], stages[name], _rows(state, state.dag.node[name])
    if stage.kind is StageKind.THREADS and not target.reduction and not target.extra_writes:
        return target if rows or extent_of(target, target.spatial) == 1 else None
    return target if stage.kind is StageKind.ROWS and _same_rows(target, rows, stage.rows) else None


def _kernels_of_readers(state: State) -> set[str | None]:
    """Return the nodes in whose kernels the current node's readers are computed: kernels of rows or threads,
    None for others."""
    found: set[str | None] = set()
    for reader in readers(state.dag, state.stage, state.current):
        stage = state.stage[reader.name]
        is_inside = stage.kind in (StageKind.ACROSS, StageKind.KEPT)
        is_kernel = stage.kind in (StageKind.ROWS, StageKind.THREADS)
        found.add(stage.compute_at if is_inside else stage.node if is_kernel else None)
    return found


def _fits_registers(placed: State, node: Node, kernel: Stage) -> bool:
    """Return whether threads can share the rows of a kernel evenly, in vectors along memory. `node` is the
    reduction that the kernel was made for."""
    dag, gpu, host = placed.dag, placed.device.gpu, placed.dag.node[kernel.node]
    assert gpu is not None
    along, of_host = (along_row(dag, host, kernel.rows, one) for one in (node, host))
    length = extent_of(node, along)
    stores_rows = fills_row(dag, host, host.write, of_host) and extent_of(host, of_host) == length
    if length % gpu.warp_size or not (host is node or not of_host or stores_rows):
        return False
    rows = {read.buffer for read in node.reads if fills_row(dag, node, read, along)}
    inside = {host.name, *(stage.node for stage in placed.stages if stage.compute_at == host.name)}
    return any(readers_of_buffer(dag, placed.stage, buffer) <= inside for buffer in rows)


def _can_be_kept(state: State) -> bool:
    """Return whether several nodes of one kernel, which has its rows in registers, read the current one."""
    dag, node = state.dag, state.current
    if not can_inline(dag, node) or not node.reads or len(readers(dag, state.stage, node)) < 2:
        return False
    kernels = _kernels_of_readers(state)
    name = kernels.pop() if len(kernels) == 1 else None
    if name is None or not state.stage[name].in_registers:
        return False
    host, rows = dag.node[name], state.stage[name].rows
    along = along_row(dag, host, rows, node)
    longest = max(extent_of(one, along_row(dag, host, rows, one)) for one in readers(dag, state.stage, node))
    return extent_of(node, along) == longest and fills_row(dag, node, node.write, along)


def _rows(state: State, target: Node) -> tuple[int, ...]:
    """Return the axes of `target` that number the current node's results.

    They are () unless each of the node's axes moves with one of them, of equal extent.
    """
    node = state.current
    aligned = aligned_axes(state.dag, target, node)
    own = [axis for axis in node.spatial if node.axes[axis].extent > 1]
    whole = all(a in aligned and target.axes[aligned[a]].extent == node.axes[a].extent for a in own)
    rows = tuple(sorted({aligned[axis] for axis in own})) if whole else ()
    return rows if len(rows) == len(own) else ()


def _same_rows(target: Node, first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Return whether both have the same axes. Axes of extent 1 don't count."""
    return all(target.axes[axis].extent == 1 for axis in set(first) ^ set(second))


def _for_tensor_cores(state: State) -> ConditionKind:
    """TF32 products exist only for tensor cores: other cores multiply float32 just as fast."""
    gpu = state.device.gpu
    found = match_product(state.dag, state.current, gpu) if gpu is not None else None
    return when(
        found is not None,
        ConditionKind.APPLY_AND_SKIP_REST if state.current.rounds_to else ConditionKind.APPLY,
    )


def _should_tile(node: Node) -> bool:
    """Return whether tiles reuse data and write boxes, which threads can copy from registers."""
    return needs_tiling(node) and writes_boxes(node)


def _fusible_epilogue(state: State) -> Node | None:
    """Return the elementwise consumer that the current node's kernel can compute.

    The consumer must still be a separate kernel, and read no later kernel.
    """
    consumer = state.epilogue()
    stages = state.stage
    if consumer is None or stages[consumer.name].kind is not StageKind.THREADS:
        return None
    later = (s for s in state.stages if s.kind is not StageKind.INLINE and s.node != consumer.name)
    reads_later = any(consumer in readers(state.dag, stages, state.dag.node[s.node]) for s in later)
    return None if reads_later else consumer


GPU_RULES: tuple[Rule, ...] = (
    Rule(
        "FollowAttention",
        lambda s: when(_attention_around(s) is not None),
        follow_attention,
    ),
    Rule(
        "FusedAttention",
        lambda s: when(_starts_attention(s), ConditionKind.APPLY),
        fused_attention,
    ),
    Rule(
        "TensorAttention",
        lambda s: when(_starts_tensor_attention(s), ConditionKind.APPLY),
        tensor_attention,
    ),
    Rule(
        "OnlineAttention",
        lambda s: when(_starts_online_attention(s), ConditionKind.APPLY),
        online_attention,
    ),
    Rule(
        "SpecialComputeLocation",
        lambda s: when(_constant_reader(s) is not None),
        special_compute_location,
    ),
    Rule("KeepInRegisters", lambda s: when(_can_be_kept(s)), keep_in_registers),
    Rule("AlwaysInline", lambda s: when(can_inline(s.dag, s.current)), always_inline),
    Rule("SimplifyConstTensor", lambda s: when(bool(s.current.constant_axes)), spread_over_threads),
    Rule(
        "CrossThreadReduction",
        lambda s: when(_should_reduce_across_threads(s), ConditionKind.APPLY),
        cross_thread_reduction,
    ),
    Rule(
        "Warpgroups",
        lambda s: when(match_warpgroups(s.dag, s.current, s.device) is not None, ConditionKind.APPLY),
        warpgroups,
    ),
    Rule("TensorCores", _for_tensor_cores, tensor_cores),
    Rule(
        "AddCacheWrite",
        lambda s: when(_should_tile(s.current) and _fusible_epilogue(s) is None),
        add_cache_write,
    ),
    Rule(
        "MultiLevelTilingWithFusion", lambda s: when(_should_tile(s.current)), multi_level_tiling_with_fusion
    ),
    Rule("Skip", lambda s: when(True), spread_over_threads),
)
