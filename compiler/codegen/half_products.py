"""Multiply float16 by instructions of CPUs that compute in it; `search.sketches.half_products` says which.

Without this, LLVM would convert every operand to float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm, TensorLoad
from tvm.tirx import (
    Add,
    AllocBuffer,
    AttrStmt,
    Broadcast,
    BufferStore,
    Cast,
    For,
    ForKind,
    IntImm,
    Mul,
    PrimFunc,
    Ramp,
    SeqStmt,
    Var,
)

from compiler.codegen.rewrite import features_of, rewrite_prim_funcs, with_body
from compiler.tir_nodes import find_all, num_lanes
from search.sketches.half_products import BLOCK_TERMS, HALF_ARITHMETIC, LONG_PRODUCTS

# With fewer products in a block, converting its sum takes as long as converting its operands.
MIN_TERMS = 4
# The halves and sums of an instruction, and the prefix of the functions in LLVM's IR, which LLVM inlines. The
# number of lanes follows.
_HALVES, _SUMS = 8, 4
_NAME = "tunefarm_fmlal_"


class _Product(NamedTuple):
    """A store that adds the products of two vectors of halves to a vector of float32."""

    store: BufferStore
    left: Any
    right: Any
    lanes: int

    @property
    def sums(self) -> TensorLoad:
        return self.store.value.a

    @property
    def key(self) -> Any:
        return tvm_ffi.StructuralKey(self.sums)


def multiply_halves(module: tvm.IRModule) -> tvm.IRModule:
    """Add products of halves by `fmlal`, or in blocks.

        for k in range(512):
            c[0:8] = c[0:8] + broadcast(float32(a[k])) * float32(b[k * 8 : k * 8 + 8])
    ->
        for k in range(512):
            c[0:8] = fmlal_8(c[0:8], broadcast(a[k]), b[k * 8 : k * 8 + 8])
    or
        for k0 in range(32):
            sums[0:8] = float16(0)
            for k1 in range(16):
                k = k0 * 16 + k1
                sums[0:8] = sums[0:8] + broadcast(a[k]) * b[k * 8 : k * 8 + 8]
            c[0:8] = c[0:8] + float32(sums[0:8])
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    features = features_of(function)
    if HALF_ARITHMETIC.isdisjoint(features):
        return function
    if not any(_is_half(cast.value) for cast in find_all(function.body, Cast)):
        return function
    if LONG_PRODUCTS in features:
        return _by_long_products(function)
    body = tvm_ffi.structural_map(function.body, (For, _loop_in_blocks))
    # These are steps of a reduction that is completely unrolled.
    return with_body(function, tvm_ffi.structural_map(body, (SeqStmt, _steps_in_blocks)))


def _by_long_products(function: PrimFunc) -> PrimFunc:
    used: set[int] = set()

    def multiply(store: BufferStore) -> BufferStore:
        product = _product(store)
        if product is None or product.lanes % _SUMS:
            return store
        used.add(product.lanes)
        dtype, name = f"float32x{product.lanes}", f"{_NAME}{product.lanes}"
        # Only the last operand may be a lane of a vector.
        factors = sorted((product.left, product.right), key=lambda one: isinstance(one, Broadcast))
        value = tirx.call_pure_extern(dtype, name, product.sums, *factors)
        return BufferStore(store.buffer, value, store.indices)

    body = tvm_ffi.structural_map(function.body, (BufferStore, multiply))
    for lanes in sorted(used):
        body = AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_function(lanes)), body)
    return with_body(function, body)


def _function(lanes: int) -> str:
    """Return the function in LLVM's IR that adds products of `lanes` halves."""
    n = lanes

    def vector(numbers: Iterable[int]) -> str:
        return ", ".join("i32 poison" if at < 0 else f"i32 {at}" for at in numbers)

    lines: list[str] = []
    result = "poison"
    for first in range(0, lanes, _HALVES):
        inside = [at if at < lanes else -1 for at in range(first, first + _HALVES)]
        lines += [
            f"  %{one}{first} = shufflevector <{n} x half> %{one}, <{n} x half> poison, "
            f"<{_HALVES} x i32> <{vector(inside)}>"
            for one in ("a", "b")
        ]
        for at in range(first, min(first + _HALVES, lanes), _SUMS):
            own = range(at, at + _SUMS)
            spread = [lane - at if lane in own else -1 for lane in range(lanes)]
            joined = [lanes + lane if lane in own else lane for lane in range(lanes)]
            lines += [
                f"  %sums{at} = shufflevector <{n} x float> %sums, <{n} x float> poison, "
                f"<{_SUMS} x i32> <{vector(own)}>",
                f"  %added{at} = call <4 x float> @llvm.aarch64.neon.{'fmlal' if at == first else 'fmlal2'}"
                f".v4f32.v8f16(<4 x float> %sums{at}, <8 x half> %a{first}, <8 x half> %b{first})",
                f"  %spread{at} = shufflevector <{_SUMS} x float> %added{at}, <{_SUMS} x float> poison, "
                f"<{n} x i32> <{vector(spread)}>",
                f"  %joined{at} = shufflevector <{n} x float> {result}, <{n} x float> %spread{at}, "
                f"<{n} x i32> <{vector(joined)}>",
            ]
            result = f"%joined{at}"
    types = f"<{n} x float> %sums, <{n} x half> %a, <{n} x half> %b"
    return "\n".join(
        [
            *(
                f"declare <4 x float> @llvm.aarch64.neon.{name}.v4f32.v8f16("
                "<4 x float>, <8 x half>, <8 x half>)"
                for name in ("fmlal", "fmlal2")
            ),
            f"define linkonce_odr hidden <{n} x float> @{_NAME}{n}({types}) #0 {{",
            *lines,
            f"  ret <{n} x float> {result}",
            "}",
            'attributes #0 = { alwaysinline nounwind "target-features"="+neon,+fullfp16,+fp16fml" }',
        ]
    )


def _loop_in_blocks(loop: For) -> Any:
    """Return a loop that adds products, in blocks; or the loop itself."""
    stores = loop.body.seq if isinstance(loop.body, SeqStmt) else [loop.body]
    products = _products(stores)
    if products is None or loop.kind != ForKind.SERIAL or not isinstance(loop.extent, IntImm):
        return loop
    variable, extent = loop.loop_var, int(loop.extent)
    if int(loop.min) or any(_uses(product.sums, variable) for product in products):
        return loop
    terms = _most_terms(products)
    steps = max(
        each
        for each in range(1, extent + 1)
        if extent % each == 0 and (each == 1 or each * terms <= BLOCK_TERMS)
    )
    if not MIN_TERMS <= steps * terms <= BLOCK_TERMS:
        return loop
    inner = Var(variable.name, variable.ty.dtype)

    def added(block: Any) -> Any:
        at = inner if block is None else block * steps + inner
        adding, before, after = _block(products)
        body = (
            SeqStmt([_at(each, variable, at) for each in adding])
            if len(adding) > 1
            else _at(adding[0], variable, at)
        )
        return SeqStmt(
            [*before, For(inner, loop.min, tirx.const(steps, variable.ty.dtype), loop.kind, body), *after]
        )

    if steps == extent:
        return added(None)
    outer = Var(variable.name, variable.ty.dtype)
    blocks = tirx.const(extent // steps, variable.ty.dtype)
    return For(outer, loop.min, blocks, loop.kind, added(outer), annotations=loop.annotations)


def _steps_in_blocks(sequence: SeqStmt) -> Any:
    """Return a sequence in which neighbours that add products to the same sums do it in blocks."""
    statements: list[Any] = []
    for is_product, run in groupby(sequence.seq, lambda each: _products([each]) is not None):
        stores = list(run)
        statements += [one for block in _in_runs(stores) for one in block] if is_product else stores
    return SeqStmt(statements)


def _in_runs(stores: Sequence[BufferStore]) -> Iterable[Sequence[Any]]:
    """Yield statements of a block each for stores of products; stores that add few products stay."""
    products = _products(stores) or []
    while products:
        counts: dict[Any, int] = {}
        count = 0
        for product in products:
            counts[product.key] = counts.get(product.key, 0) + 1
            if counts[product.key] > BLOCK_TERMS:
                break
            count += 1
        first, products = products[:count], products[count:]
        if _most_terms(first) < MIN_TERMS:
            yield [product.store for product in first]
        else:
            adding, before, after = _block(first)
            yield [*before, *adding, *after]


def _block(products: Sequence[_Product]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the stores that add products to halves, and what comes before and after all of them."""
    before: list[Any] = []
    adding: list[Any] = []
    after: list[Any] = []
    sums: dict[Any, Any] = {}
    for product in products:
        lanes, store = product.lanes, product.store
        indices = [Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)]
        halves = sums.get(product.key)
        if halves is None:
            halves = sums[product.key] = tirx.decl_buffer(
                (lanes,), "float16", "sums", scope="local", layout=None
            )
            zeros = Broadcast(tirx.const(0.0, "float16"), lanes)
            before += [AllocBuffer(halves), BufferStore(halves, zeros, indices)]
            wide = Cast(f"float32x{lanes}", tirx.BufferLoad(halves, indices))
            after.append(BufferStore(store.buffer, product.sums + wide, store.indices))
        total = tirx.BufferLoad(halves, indices)
        adding.append(BufferStore(halves, total + product.left * product.right, indices))
    return adding, before, after


def _products(statements: Iterable[Any]) -> list[_Product] | None:
    """Return the products that statements add; None if one does something else, or reads a sum."""
    found = []
    for statement in statements:
        product = _product(statement) if isinstance(statement, BufferStore) else None
        if product is None:
            return None
        found.append(product)
    return found


def _product(store: BufferStore) -> _Product | None:
    """Return what a store adds, or None."""
    added = store.value
    if not isinstance(added, Add) or not isinstance(added.a, TensorLoad) or not isinstance(added.b, Mul):
        return None
    own = tirx.BufferLoad(store.buffer, store.indices)
    lanes = num_lanes(added)
    left, right = (_narrow(factor) for factor in (added.b.a, added.b.b))
    if lanes == 1 or left is None or right is None or not tvm_ffi.structural_equal(added.a, own):
        return None
    return _Product(store, left, right, lanes)


def _narrow(factor: Any) -> Any | None:
    """Return the halves that a factor is converted from; None if it isn't."""
    if isinstance(factor, Broadcast) and (value := _narrow(factor.value)) is not None:
        return Broadcast(value, factor.lanes)
    is_widened = isinstance(factor, Cast) and str(factor.ty.dtype).startswith("float32")
    return factor.value if is_widened and _is_half(factor.value) else None


def _is_half(value: Any) -> bool:
    return str(value.ty.dtype).startswith("float16")


def _most_terms(products: Sequence[_Product]) -> int:
    """Return the number of products that are added to one sum, at most."""
    keys = [product.key for product in products]
    return max(map(keys.count, keys))


def _at(statement: Any, variable: Any, value: Any) -> Any:
    return tvm_ffi.structural_map(statement, (Var, lambda each: value if each.same_as(variable) else each))


def _uses(expr: Any, variable: Any) -> bool:
    return any(each.same_as(variable) for each in find_all(expr, Var))
