"""Attention with an online softmax: write the kernel for which a schedule has set the sizes.

No sequence of schedule primitives makes an online softmax. So a schedule only brings the workload into a form
with three axes, images, queries and keys or columns, and marks the last block with the sizes of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, Cast, Evaluate, For, ForKind, IfThenElse, IterVar, PrimFunc, SeqStmt, Var

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body
from compiler.precision.tf32 import multiplies_rounded, without_rounding
from compiler.tir_nodes import find_all, op_name
from core.job import TF32
from core.profile import FLOAT32
from core.trace import ONLINE_ATTENTION
from search.sketches.attention import row_skews

SIDE = 16
WARP = 32
SHARED = "shared.dyn"
# The types of operands of tensor cores in CUDA C. Other cores multiply float32.
CUDA_TYPES = {"float16": "half", "bfloat16": "__nv_bfloat16", TF32: "tensor_cores::tf32"}
# Larger sizes don't fit the registers of any device, and would take minutes to compile.
MAX_SIZE = 64
# The float32 values of a fragment of 16 x 16 in each lane.
OF_LANE = 8

Expr = Any
Index = Sequence[Expr]


class NoAttention(ValueError):
    """A marked function doesn't compute an attention. The message says what is different."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a kernel.

    warps                                the warps of a block
    rows                                 the fragments of queries of a warp
    columns                              the fragments of keys of a step
    stages                               the tiles of keys, and those of values, in shared memory
    query_lanes, key_lanes, value_lanes  the elements that a thread fetches at once
    parts                                the warps that share queries, each with a part of a step's keys
    """

    warps: int
    rows: int
    columns: int
    stages: int
    query_lanes: int
    key_lanes: int
    value_lanes: int
    parts: int = 1

    def __post_init__(self) -> None:
        if not all(0 < size <= MAX_SIZE for size in vars(self).values()):
            raise NoAttention(f"the sizes of an attention are from 1 to {MAX_SIZE}, not {vars(self)}")
        if self.warps % self.parts:
            raise NoAttention(f"{self.parts} parts of keys don't divide {self.warps} warps")

    @property
    def queries(self) -> int:
        return SIDE * self.warps // self.parts * self.rows

    @property
    def keys_of_warp(self) -> int:
        return SIDE * self.columns

    @property
    def keys(self) -> int:
        """The keys of a step."""
        return self.parts * self.keys_of_warp


def write_attention(module: tvm.IRModule) -> tvm.IRModule:
    """Replace the body of each marked function by its kernel. Raises NoAttention.

        for s, i, j, k: S[s, i, j] += Q[s, i, k] * K[s, j, k]
        for s, i, j: M[s, i] = max(M[s, i], f(S[s, i, j]))
        for s, i, j: L[s, i] += exp(f(S[s, i, j]) - M[s, i])
        for s, i, j: P[s, i, j] = exp(f(S[s, i, j]) - M[s, i]) / L[s, i]
        for s, i, j, k: V[s, i, j] += P[s, i, k] * W[s, k, j]
        for s, i, j: Y[s, i, j] = g(V[s, i, j])                           # marked
    ->
        for blockIdx.x, threadIdx.y, threadIdx.x:                         # s, i0 and i1
            for ...: Q_shared[i, k] = Q[s, i, k]
            for j0:
                for ...: K_shared[j, k] = K[s, j, k]; W_shared[j, k] = W[s, j, k]
                multiply_keys(S_local, Q_shared, K_shared)
                for ... in T.unroll: S_local[i, j] = f(S_local[i, j])
                weigh_scores(S_local, V_local, M_local, L_local)
                multiply_values(V_local, S_local, W_shared)
            add_parts(V_local, M_local, L_local)                          # if warps share queries
            divide_by_totals(V_local, L_local)
            for ... in T.unroll: Y[s, i, j] = g(V_local[i, j])
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    blocks = {block.name_hint: block for block in find_all(function.body, SBlock)}
    marked = [block for block in blocks.values() if ONLINE_ATTENTION in block.annotations]
    if not marked:
        return function
    writers = {block.writes[0].source: block for block in blocks.values() if len(block.writes) == 1}
    sizes = Sizes(*map(int, marked[0].annotations[ONLINE_ATTENTION]))
    return with_body(function, _Kernel(Attention.of(marked[0], writers), sizes).body())


@dataclass(frozen=True)
class Elementwise:
    """A block that computes one value for each of its axes' indices."""

    block: SBlock

    def __post_init__(self) -> None:
        if not isinstance(self.block.body, BufferStore) or any(
            axis.iter_type != IterVar.DataPar for axis in self.block.iter_vars
        ):
            raise NoAttention(f"the block {self.block.name_hint} computes more than one value")

    @property
    def extents(self) -> list[int]:
        return [int(axis.dom.extent) for axis in self.block.iter_vars]

    @property
    def dtype(self) -> str:
        return str(self.block.writes[0].source.ty.dtype)

    def at(self, expression: Expr, indices: Index) -> Expr:
        """Return an expression of the block with these indices for its axes."""
        return _substituted(expression, self.block.iter_vars, indices)

    def value(self, indices: Index) -> Expr:
        return self.at(self.block.body.value, indices)


@dataclass(frozen=True)
class Attention:
    """The parts of an attention. `score` is f of the last block before the softmax, which reads the products
    `scored`. `operand` is the type of the multiplications, float32 or one of CUDA_TYPES. A `by_rows` operand
    lies in memory as its rows are summed: [k, j].
    """

    query: Elementwise
    key: Elementwise
    value: Elementwise
    weights: Elementwise
    result: Elementwise
    score: Expr
    scored: Any
    operand: str
    keys_by_rows: bool
    values_by_rows: bool

    @classmethod
    def of(cls, marked: SBlock, writers: Mapping[Any, SBlock]) -> Attention:
        result = Elementwise(marked)
        (summed,) = [
            load.source for load in find_all(marked.body.value, TensorLoad) if load.source in writers
        ]
        of_values = _Product.of(writers[summed])
        weights = Elementwise(writers[of_values.first])
        softmax = _Softmax.of(weights.block, writers)
        of_scores = _Product.of(writers[softmax.scored])
        found = cls(
            query=Elementwise(writers[of_scores.first]),
            key=Elementwise(writers[of_scores.second]),
            value=Elementwise(writers[of_values.second]),
            weights=weights,
            result=result,
            score=softmax.score,
            scored=softmax.scored,
            operand=of_scores.operand,
            keys_by_rows=of_scores.by_rows,
            values_by_rows=of_values.by_rows,
        )
        if of_values.operand != of_scores.operand or found.operand not in (FLOAT32, *CUDA_TYPES):
            raise NoAttention(
                f"both products of an attention are of float32, {', '.join(CUDA_TYPES)}, not of "
                f"{of_scores.operand} and {of_values.operand}"
            )
        return found


@dataclass(frozen=True)
class _Product:
    """The operands of C[s, i, j] += A[s, i, k] * B[s, k, j]; B is `by_rows` in this order, or [s, j, k].
    `operand` is their type, or TF32 if they are rounded to it.
    """

    first: Any
    second: Any
    operand: str
    by_rows: bool

    @classmethod
    def of(cls, block: SBlock) -> _Product:
        axes = [axis.var for axis in block.iter_vars]
        added = without_rounding(block.body.value)
        product = added.b if isinstance(added, tirx.Add) else None
        factors = [product.a, product.b] if isinstance(product, tirx.Mul) else []
        loads = [one for one in map(_without_casts, factors) if isinstance(one, TensorLoad)]
        if len(axes) != 4 or len(loads) != 2 or any(len(load.indices) != 3 for load in loads):
            raise NoAttention(f"the block {block.name_hint} is no matrix product")
        _, i, _, k = axes
        first, second = loads if loads[0].indices[1].same_as(i) else loads[::-1]
        types = {str(load.ty.dtype) for load in loads}
        if not first.indices[1].same_as(i) or not first.indices[2].same_as(k) or len(types) > 1:
            raise NoAttention(f"the block {block.name_hint} is no matrix product")
        operand = TF32 if multiplies_rounded(block.body.value) else types.pop()
        return cls(first.source, second.source, operand, second.indices[1].same_as(k))


@dataclass(frozen=True)
class _Softmax:
    """exp(score - maximum) / total, where `score` reads the products `scored`."""

    score: Expr
    scored: Any

    @classmethod
    def of(cls, block: SBlock, writers: Mapping[Any, SBlock]) -> _Softmax:
        value = _without_casts(block.body.value)
        if not isinstance(value, tirx.Div) or not isinstance(value.b, TensorLoad):
            raise NoAttention("the weights of an attention are divided by their sum")
        score, largest = _exponent(value.a)
        analyzer = Analyzer()
        for axis in block.iter_vars:
            analyzer.bind(axis.var, axis.dom)
        key = block.iter_vars[-1].var
        maximum, total = writers[largest.source], writers[value.b.source]
        reduced = _reduced(maximum, tirx.Max, largest.indices, key)
        summed, subtracted = _exponent(_reduced(total, tirx.Add, value.b.indices, key))
        for one, other in ((reduced, score), (summed, score), (subtracted, largest)):
            if not tvm_ffi.structural_equal(analyzer.simplify(one), analyzer.simplify(other)):
                raise NoAttention(f"the softmax reduces {one}, and its weights are of {other}")
        products = {
            load.source for load in find_all(score, TensorLoad) if _is_reduction(writers.get(load.source))
        }
        if len(products) != 1:
            raise NoAttention("the softmax of an attention reads one product")
        (scored,) = products
        own_axes = [axis.var for axis in block.iter_vars]
        for load in find_all(score, TensorLoad):
            if load.source.same_as(scored) and not all(
                analyzer.can_prove_equal(index, axis)
                for index, axis in zip(load.indices, own_axes, strict=True)
            ):
                raise NoAttention("the softmax of an attention reads scores in their order")
        return cls(score, scored)


def _exponent(value: Expr) -> tuple[Expr, TensorLoad]:
    """Return x and m of exp(x - m), where m is loaded."""
    if isinstance(value, Call) and op_name(value) == "exp":
        difference = value.args[0]
        if isinstance(difference, tirx.Sub) and isinstance(difference.b, TensorLoad):
            return difference.a, difference.b
    raise NoAttention(f"the weights of an attention are exponentials, not {value}")


def _reduced(block: SBlock, reducer: Any, indices: Index, key: Var) -> Expr:
    """Return what a block reduces by a `reducer` for the result at these indices."""
    store: Any = block.body
    sums = [axis for axis in block.iter_vars if axis.iter_type == IterVar.CommReduce]
    if not isinstance(store, BufferStore) or not isinstance(store.value, reducer) or len(sums) != 1:
        raise NoAttention(f"the block {block.name_hint} is no reduction of a softmax")
    places = zip(store.indices, indices, strict=True)
    at = {sums[0].var: key} | {own: index for own, index in places if isinstance(own, Var)}
    return tvm_ffi.structural_map(store.value.b, (Var, lambda var: at.get(var, var)))


def _is_reduction(block: SBlock | None) -> bool:
    return block is not None and any(axis.iter_type == IterVar.CommReduce for axis in block.iter_vars)


def _without_casts(value: Expr) -> Expr:
    while isinstance(value, Cast):
        value = value.value
    return value


def _substituted(expression: Expr, axes: Sequence[IterVar], indices: Index) -> Expr:
    at = {axis.var: index.astype(str(axis.var.ty.dtype)) for axis, index in zip(axes, indices, strict=True)}
    return tvm_ffi.structural_map(expression, (Var, lambda var: at.get(var, var)))


class _Kernel:
    """Writes the body of a kernel."""

    def __init__(self, attention: Attention, sizes: Sizes) -> None:
        self._attention, self._sizes = attention, sizes
        images, self._queries, width = attention.result.extents
        self._images = images
        self._keys = attention.weights.extents[2]
        depth = attention.query.extents[2]
        self._depth, self._width = -(-depth // SIDE), -(-width // SIDE)
        self._columns = width
        self._blocks = -(-self._queries // sizes.queries)
        self._block, self._warp, self._lane = (_index(name) for name in ("block", "warp", "lane"))
        # A warp's first query in the block, and its first key in a step.
        self._own_queries = tirx.floordiv(self._warp, sizes.parts) * (SIDE * sizes.rows)
        self._own_keys = tirx.floormod(self._warp, sizes.parts) * sizes.keys_of_warp
        self._image = tirx.floordiv(self._block, self._blocks)
        self._first = tirx.floormod(self._block, self._blocks) * sizes.queries
        self._step = _index("step")
        # In float32, lanes compute products by themselves.
        self._in_lanes = attention.operand == FLOAT32
        self._products = "_in_lanes" if self._in_lanes else ""
        self._types = [] if self._in_lanes else [CUDA_TYPES[attention.operand]]
        key_tile = (SIDE * self._depth, sizes.keys)
        value_tile = (sizes.keys, SIDE * self._width)
        tiles = (
            (sizes.queries, SIDE * self._depth),
            _ordered(key_tile, attention.keys_by_rows),
            _ordered(value_tile, attention.values_by_rows),
        )
        skews = row_skews(attention.operand, attention.keys_by_rows, attention.values_by_rows)
        self._query_tile, self._key_tile, self._value_tile = (
            _Tile.of(name, rows, row, skew, attention.query.dtype)
            for name, (rows, row), skew in zip(("query", "key", "value"), tiles, skews, strict=True)
        )
        self._scores, self._sums, self._maxima, self._totals = (
            tirx.decl_buffer((count,), "float32", name, scope="local", layout=None)
            for name, count in (
                ("scores", sizes.rows * sizes.columns * OF_LANE),
                ("sums", sizes.rows * self._width * OF_LANE),
                ("maxima", sizes.rows * 2),
                ("totals", sizes.rows * 2),
            )
        )
        # What each lane passes to the warp with the first part of the keys. Its memory has the type of the
        # operands, because TVM refuses pointers of another type to memory that it reuses.
        dtype = attention.query.dtype
        size = sizes.rows * (self._width * OF_LANE + 4) * WARP * sizes.warps * 32 // tvm.DataType(dtype).bits
        exchanged = tirx.decl_buffer((size,), dtype, "exchanged", scope=SHARED, layout=None)
        self._exchanged = [exchanged] if sizes.parts > 1 else []

    def body(self) -> SBlockRealize:
        own = [self._begin(), self._fetch_queries(), self._over_keys(), self._finish()]
        threads = _bound(self._lane, WARP, "threadIdx.x", SeqStmt(own))
        warps = _bound(self._warp, self._sizes.warps, "threadIdx.y", threads)
        grid = _bound(self._block, self._images * self._blocks, "blockIdx.x", warps)
        kept = [self._scores, self._sums, self._maxima, self._totals]
        return _block("root", grid, [], [], [*self._shared, *self._exchanged, *kept])

    def _begin(self) -> SBlockRealize:
        started = [(self._sums, 0.0), (self._totals, 0.0), (self._maxima, -math.inf)]
        fills = [_filled(buffer, tirx.const(value, "float32")) for buffer, value in started]
        return _block("begin", SeqStmt(fills), [], [self._sums, self._maxima, self._totals])

    def _fetch_queries(self) -> SBlockRealize:
        lanes = self._sizes.query_lanes
        return self._fetch(self._attention.query, self._query_tile, (self._first, _zero()), lanes)

    def _over_keys(self) -> For:
        """Return the loop over blocks of keys."""
        attention, sizes = self._attention, self._sizes
        first = self._step * sizes.keys
        key_at = _ordered((_zero(), first), attention.keys_by_rows)
        value_at = _ordered((first, _zero()), attention.values_by_rows)
        steps = [
            self._fetch(attention.key, self._key_tile, key_at, sizes.key_lanes),
            self._fetch(attention.value, self._value_tile, value_at, sizes.value_lanes),
            self._attend(first),
        ]
        count = -(-self._keys // sizes.keys)
        annotations: dict[str, Any] = {}
        if sizes.stages > 1:
            annotations = {
                "software_pipeline_stage": [0, 0, sizes.stages - 1],
                "software_pipeline_order": [0, 1, 2],
                "software_pipeline_async_stages": [0],
            }
        return For(self._step, 0, count, ForKind.SERIAL, SeqStmt(steps), annotations=annotations)

    def _attend(self, first: Expr) -> SBlockRealize:
        """Compute the scores of a block of keys, and add up its weighted values."""
        attention, sizes = self._attention, self._sizes
        counts = [sizes.rows, sizes.columns]
        statements = [
            _called(
                f"multiply_keys{self._products}",
                [*self._types, *counts, self._depth, attention.keys_by_rows],
                self._scores.access_ptr("rw"),
                *self._query_tile.arguments(self._own_queries),
                *self._key_tile.arguments(*_ordered((_zero(), self._own_keys), attention.keys_by_rows)),
            ),
            *self._scored(first + self._own_keys),
            _called(
                "weigh_scores",
                [*counts, self._width],
                *(one.access_ptr("rw") for one in (self._scores, self._sums, self._maxima, self._totals)),
            ),
            _called(
                f"multiply_values{self._products}",
                [*self._types, *counts, self._width, attention.values_by_rows],
                self._sums.access_ptr("rw"),
                self._scores.access_ptr("r"),
                *self._value_tile.arguments(*_ordered((self._own_keys, _zero()), attention.values_by_rows)),
            ),
        ]
        kept = [self._scores, self._sums, self._maxima, self._totals]
        used = [*self._shared, *kept]
        # TVM's software pipeline counts the statements of a block, but none of an inner block. Their number
        # may change: TVM removes the stores of scores that are neither scaled nor masked.
        return _block("attend", _block("attend_keys", SeqStmt(statements), used, kept), used, kept)

    def _scored(self, first: Expr) -> list[BufferStore]:
        """Scale and mask the scores. Keys beyond the last have no weight."""
        attention, stores = self._attention, []
        for number in range(int(self._scores.ty.shape[0])):
            row, column = self._place(number, self._sizes.columns)
            key = first + column
            # Rows beyond the last are computed with the values of the last, and not stored.
            query = (
                tirx.min(self._first + row, self._queries - 1) if self._has_more_rows else self._first + row
            )
            own = tirx.BufferLoad(self._scores, [number])
            score = _replaced(attention.score, attention.scored, own)
            value = attention.weights.at(score, [self._image, query, key])
            if self._keys % self._sizes.keys:
                lowest = tirx.const(-math.inf, "float32")
                value = tirx.if_then_else(key < self._keys, value, lowest)
            stores.append(BufferStore(self._scores, value, [number]))
        return stores

    def _finish(self) -> SBlockRealize:
        """Divide the weighted values by their sums of weights, and store them two at a time."""
        result = self._attention.result
        divide = _called(
            "divide_by_totals",
            [self._sizes.rows, self._width],
            self._sums.access_ptr("rw"),
            self._totals.access_ptr("r"),
        )
        lanes = 2 if self._columns % 2 == 0 else 1
        statements: list[Any] = [*self._add_parts(), divide]
        for number in range(0, int(self._sums.ty.shape[0]), lanes):
            row, column = self._place(number, self._width)
            lane = _index("v")
            at = [self._image, self._first + row, column + lane]
            summed = tirx.BufferLoad(self._sums, [number + lane])
            read = result.block.body.value
            value = result.at(_replaced(read, self._source(read), summed), at)
            indices = [result.at(index, at) for index in result.block.body.indices]
            store: Any = BufferStore(result.block.body.buffer, value, indices)
            store = For(lane, 0, lanes, ForKind.VECTORIZED, store) if lanes > 1 else _at_zero(store, lane)
            conditions = []
            if self._sizes.parts > 1:
                conditions.append(tirx.floormod(self._warp, self._sizes.parts) == 0)
            if self._has_more_rows:
                conditions.append(self._first + row < self._queries)
            if self._columns % SIDE:
                conditions.append(column < self._columns)
            statements.append(_guarded(store, conditions))
        written = result.block.body.buffer
        kept = [self._sums, self._maxima, self._totals, *self._exchanged]
        return _block("finish", SeqStmt(statements), kept, [*kept, written])

    def _add_parts(self) -> list[Evaluate]:
        """Add up what the warps that share queries have found for their parts of the keys."""
        if self._sizes.parts == 1:
            return []
        kept = (self._sums, self._maxima, self._totals)
        (exchanged,) = self._exchanged
        parameters = [self._sizes.rows, self._width, self._sizes.parts]
        pointers = (one.access_ptr("rw") for one in (*kept, exchanged))
        return [_called("add_parts", parameters, *pointers)]

    def _source(self, value: Expr) -> Any:
        """Return the sums that the result is computed from."""
        read = {region.source for region in self._attention.result.block.reads}
        (found,) = [
            load.source for load in find_all(value, TensorLoad) if load.source in read and _is_local(load)
        ]
        return found

    @property
    def _shared(self) -> list[Any]:
        return [tile.buffer for tile in (self._query_tile, self._key_tile, self._value_tile)]

    @property
    def _has_more_rows(self) -> bool:
        return self._queries % self._sizes.queries != 0

    def _place(self, number: int, columns: int) -> tuple[Expr, Expr]:
        """Return the row and the column of a lane's value, within the block."""
        fragment, value = divmod(number, OF_LANE)
        i, j = divmod(fragment, columns)
        row = self._own_queries + tirx.floordiv(self._lane, 4)
        # A lane's four columns are neighbours, or two pairs of neighbours.
        of_lane, of_pair = (4, 2) if self._in_lanes else (2, 8)
        column = tirx.floormod(self._lane, 4) * of_lane
        return row + (SIDE * i + value // 2 % 2 * 8), column + (SIDE * j + value // 4 * of_pair + value % 2)

    def _fetch(self, copied: Elementwise, tile: _Tile, first: Index, lanes: int) -> SBlockRealize:
        """Fetch a tile with all threads of the block. Elements beyond the operand are zero.

        for n: for v in T.vectorized(lanes): A_shared[i, j] = A[s, first + i, first + j] if inside else 0
        """
        threads = self._sizes.warps * WARP
        vectors = tile.rows * tile.row // lanes
        step, lane = _index("n"), _index("v")
        flat = step * threads + self._warp * WARP + self._lane
        i = tirx.floordiv(flat * lanes, tile.row)
        start = tirx.floormod(flat * lanes, tile.row)
        at = [first[0] + i, first[1] + start + lane]
        value = copied.value([self._image, *at])
        inside = [
            index < extent
            for index, extent, whole in zip(
                (first[0] + i, first[1] + start), copied.extents[1:], (tile.rows, tile.row), strict=True
            )
            if extent % whole
        ]
        if inside:
            zero = tirx.const(0, copied.dtype)
            value = tirx.if_then_else(tirx.all(*inside), value, zero)
        store = BufferStore(tile.buffer, value, [i, start + lane])
        vector = For(lane, 0, lanes, ForKind.VECTORIZED, store) if lanes > 1 else _at_zero(store, lane)
        own = _guarded(vector, [flat < vectors] if vectors % threads else [])
        loop = For(step, 0, -(-vectors // threads), ForKind.SERIAL, own)
        reads = [load.source for load in find_all(copied.block.body.value, TensorLoad)]
        return _block(f"fetch_{tile.buffer.name}", loop, reads, [tile.buffer])


@dataclass(frozen=True)
class _Tile:
    """A part of an operand in shared memory: rows of `row` elements, and padding between them."""

    buffer: Any
    rows: int
    row: int

    @classmethod
    def of(cls, name: str, rows: int, row: int, skew: int, dtype: str) -> _Tile:
        buffer = tirx.decl_buffer((rows, row + skew), dtype, name, scope=SHARED, layout=None)
        return cls(buffer, rows, row)

    def arguments(self, row: Expr, element: Expr = 0) -> tuple[Expr, int]:
        """Return a pointer to an element of the tile, and the distance of its rows."""
        distance = int(self.buffer.ty.shape[1])
        return self.buffer.access_ptr("r", offset=row * distance + element), distance


def _index(name: str) -> Var:
    return Var(name, "int32")


def _zero() -> Expr:
    return tirx.const(0, "int32")


def _ordered(pair: tuple[Any, Any], by_rows: bool) -> tuple[Any, Any]:
    return pair if by_rows else pair[::-1]


def _is_local(load: TensorLoad) -> bool:
    return load.source.scope() == "local"


def _replaced(expression: Expr, source: Any, value: Expr) -> Expr:
    """Return an expression with a value in place of what it loads from a buffer."""
    return tvm_ffi.structural_map(
        expression, (TensorLoad, lambda load: value if load.source.same_as(source) else load)
    )


def _at_zero(statement: Any, variable: Var) -> Any:
    return tvm_ffi.structural_map(statement, (Var, lambda var: _zero() if var.same_as(variable) else var))


def _guarded(statement: Any, conditions: Sequence[Expr]) -> Any:
    return IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement


def _filled(buffer: Any, value: Expr) -> For:
    number = _index("n")
    store = BufferStore(buffer, value, [number])
    return For(number, 0, int(buffer.ty.shape[0]), ForKind.UNROLLED, store)


def _called(function: str, parameters: Sequence[object], *arguments: Any) -> Evaluate:
    """Call a function of attention.cuh."""
    names = ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in parameters)
    return Evaluate(tirx.call_extern("void", f"tensor_cores::{function}<{names}>", *arguments))


def _bound(variable: Var, extent: int, thread: str, body: Any) -> For:
    axis = IterVar(None, _index(thread), IterVar.ThreadIndex, thread)
    return For(variable, 0, extent, ForKind.THREAD_BINDING, body, thread_binding=axis)


def _block(
    name: str, body: Any, reads: Sequence[Any], writes: Sequence[Any], allocated: Sequence[Any] = ()
) -> SBlockRealize:
    def whole(buffers: Sequence[Any]) -> list[Any]:
        every: Callable[[Any], list[Any]] = lambda one: [tvm.ir.Range(0, extent) for extent in one.ty.shape]  # noqa: E731
        return [tirx.BufferRegion(one, every(one)) for one in dict.fromkeys(buffers)]

    block = SBlock([], whole(reads), whole(writes), name, body, alloc_buffers=list(allocated))
    return SBlockRealize([], True, block)
