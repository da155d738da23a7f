"""Matrix products with packed constant weights, which are converted to floats in registers.

A weight is `scale * (code - zero)`, with a scale and a zero for each block of a column. Its code has 4 or 8
bits. The time of a product of few rows is the time to load its weights, so fewer bytes make it faster.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx
from tvm.ir import Call, GenericConst, GlobalVar

from compiler.constants.fold import constant, rewrite_functions, static_shape
from compiler.target import target_features
from search.sketches.block_products import HALVES, NEIGHBOURS, block_instructions

# The supported numbers of bits of a code.
PACKED_BITS = (4, 8)
# Larger weights come from memory. A single-row product then takes as long as loading them.
CACHED_BYTES = 32 << 20
_HALVES: Mapping[str, type] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# The prefix of the kernels' names.
KERNEL = "packed_matmul"
# TVM's OpPatternKind kOutEWiseFusable: elementwise operators are fused with the result.
_FUSES_ELEMENTWISE = 4


@dataclass(frozen=True)
class PackedWeight:
    """A matrix of `columns`, in blocks of `block` rows.

    `codes` are [blocks, bytes of a block, columns]. With 4 bits, the lower half of a byte holds the first of
    its two codes. `scales` are [blocks, columns]. `zeros` are too, or [1, 1] if all are equal.
    """

    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[Any]
    block: int

    @classmethod
    def of(
        cls, codes: NDArray[np.uint8], scales: NDArray[Any], zeros: NDArray[Any], bits: int
    ) -> PackedWeight:
        """Arrange codes [columns, blocks, bytes of a block] with scales and zeros [columns, blocks]."""
        block = codes.shape[-1] * 8 // bits
        if np.all(zeros == zeros[0, 0]):
            zeros = zeros[:1, :1]
        # Exporters may store zeros as floats.
        if zeros.min() >= 0 and zeros.max() <= 255 and np.all(zeros == np.rint(zeros)):
            zeros = zeros.astype(np.uint8)
        factors = np.ascontiguousarray(scales.T, np.float32)
        by_row = np.ascontiguousarray(codes.transpose(1, 2, 0))
        return cls(by_row, factors, np.ascontiguousarray(zeros.T), block)

    @property
    def floats(self) -> NDArray[np.float32]:
        """The unpacked matrix, [rows, columns]."""
        blocks, num_bytes, columns = self.codes.shape
        per_byte = self.block // num_bytes
        parts = [
            (self.codes >> (8 // per_byte * part)) & ((1 << 8 // per_byte) - 1) for part in range(per_byte)
        ]
        codes = np.stack(parts, axis=2).reshape(blocks, self.block, columns)
        floats = (codes - self.zeros[:, np.newaxis].astype(np.float32)) * self.scales[:, np.newaxis]
        return floats.reshape(blocks * self.block, columns)


def packed_product(builder: relax.BlockBuilder, data: relax.Expr, weight: PackedWeight) -> relax.Expr:
    """Return the product of float32 data, [..., rows of the weight], and a packed weight.

    For 4 bits and k = 32 b + 2 p + h:

        w = (codes[b, p, j] >> 4 * h & 15) * scales[b, j] - zeros[b, j] * scales[b, j]
        c[i, j] = sum(a[i, k] * w)

    The second product doesn't depend on p and h, so it is computed once for each block.
    """
    blocks, num_bytes, columns = weight.codes.shape
    per_byte = weight.block // num_bytes
    bits = 8 // per_byte

    is_even = weight.zeros.size == 1

    def compute(rows: te.Tensor, codes: te.Tensor, scales: te.Tensor, zeros: te.Tensor) -> te.Tensor:
        b, p = te.reduce_axis((0, blocks), "b"), te.reduce_axis((0, num_bytes), "p")
        h = te.reduce_axis((0, per_byte), "h")

        def multiply(*place: tirx.Expr) -> tirx.Expr:
            *row, j = place
            code = codes[b, p, j].astype("int32")
            if per_byte > 1:
                code = (code >> (h * bits)) & ((1 << bits) - 1)
            zero = (zeros[0, 0] if is_even else zeros[b, j]).astype("float32")
            value = code.astype("float32") * scales[b, j] - zero * scales[b, j]
            k = (b * num_bytes + p) * per_byte + h if per_byte > 1 else b * num_bytes + p
            return te.sum(rows[(*row, k)] * value, axis=[b, p, h] if per_byte > 1 else [b, p])

        return te.compute((*rows.shape[:-1], columns), multiply, name="product")

    operands = [constant(one) for one in (weight.codes, weight.scales, weight.zeros)]
    return builder.call_te(
        compute,
        data,
        *operands,
        primfunc_name_hint=KERNEL,
        primfunc_attrs={"op_pattern": _FUSES_ELEMENTWISE},
    )


def weight_of(call: Call) -> PackedWeight | None:
    """Return the weight of a packed product's call; None for other calls."""
    if getattr(call.op, "name", "") != "relax.call_tir" or not isinstance(call.args[0], GlobalVar):
        return None
    if not call.args[0].name_hint.startswith(KERNEL):
        return None
    data, *operands = call.args[1]
    shape = static_shape(data)
    if shape is None or len(operands) != 3 or not all(isinstance(one, GenericConst) for one in operands):
        return None
    codes, scales, zeros = (one.value.numpy() for one in operands)
    return PackedWeight(codes, scales, zeros, shape[-1] // codes.shape[0])


def unpack(mod: tvm.IRModule, largest: int | None = None) -> tvm.IRModule | None:
    """Replace packed products with products of floats; return None if there are none to replace.

    `largest` is a number of bytes: single-row products with larger float weights stay packed.
    """
    unpacker = _Unpacker(mod, largest)
    unpacked = rewrite_functions(mod, unpacker.visit_expr)
    return unpacked if unpacker.found else None


@relax.expr_functor.mutator
class _Unpacker(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, largest: int | None) -> None:
        super().__init__(mod)
        self._largest = largest
        self.found = False

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        weight = weight_of(call)
        if weight is None or self._stays(call, weight):
            return call
        self.found = True
        data = call.args[1][0]
        bound: Any = self.lookup_binding(data) if isinstance(data, relax.Var) else None
        if self._largest is None and getattr(getattr(bound, "op", None), "name", "") == "relax.astype":
            # Tensor cores multiply halves, and add up in float32.
            source = bound.args[0]
            if (half := _HALVES.get(str(source.ty.dtype))) is not None:
                return relax.op.matmul(source, constant(weight.floats.astype(half)), out_dtype="float32")
        return relax.op.matmul(data, constant(weight.floats))

    def _stays(self, call: Call, weight: PackedWeight) -> bool:
        rows = math.prod((static_shape(call.args[1][0]) or ())[:-1])
        num_bytes = 4 * weight.codes.shape[0] * weight.block * weight.codes.shape[2]
        return self._largest is not None and rows == 1 and num_bytes > self._largest


def multiply_in_bytes(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Multiply rows that are rounded to int8 as integers, where the target has instructions.

        lv = multiply(round(x / s), s)                # blocks, each with a scale s
        gv = packed_matmul(reshape(lv), codes, scales, zeros)
    ->
        lv = astype(round(x / s), "int8")
        gv = rounded_matmul(s, lv, codes, scales, zeros)

        c[i, j] = sum_b(s[i, b] * scales[b, j] * sum_k(lv[i, b, k] * (codes[b, k, j] - zeros[b, j])))
    """
    rewriter = _Bytes(mod, target_features(target))
    functions = {
        name: rewriter.visit_expr(function)
        for name, function in mod.functions_items()
        if isinstance(function, relax.Function)
    }
    rewritten = rewriter.builder_.get()
    rewritten.update(functions)
    return relax.transform.DeadCodeElimination()(rewritten)


@relax.expr_functor.mutator
class _Bytes(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, features: Collection[str]) -> None:
        super().__init__(mod)
        self._features = features

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        weight = weight_of(call)
        rounded = None if weight is None else self._rounded(call.args[1][0], weight)
        if weight is None or rounded is None:
            return call
        integers, scale = rounded
        *outer, blocks, block = static_shape(integers) or ()
        steps = block // (HALVES * NEIGHBOURS)
        rows = self._emit(relax.op.astype(integers, "int8"))
        if 2 * weight.codes.shape[1] == block:
            # A byte holds the codes of two neighbours. A dot product takes the first codes of four bytes, or
            # the second.
            shape = (*outer, blocks, steps, NEIGHBOURS, HALVES)
            axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            rows = self._emit(relax.op.permute_dims(self._emit(relax.op.reshape(rows, shape)), axes))
            codes = weight.codes.reshape(blocks, steps, NEIGHBOURS, -1)
        else:
            rows = self._emit(relax.op.reshape(rows, (*outer, blocks, steps, HALVES, NEIGHBOURS)))
            codes = weight.codes.reshape(blocks, steps, HALVES, NEIGHBOURS, -1)
        scale = self._emit(relax.op.reshape(scale, (*outer, blocks)))
        operands = [constant(one) for one in (codes, weight.scales, weight.zeros)]
        return self.builder_.call_te(
            _rounded_product,
            scale,
            rows,
            *operands,
            primfunc_name_hint="rounded_matmul",
            primfunc_attrs={"op_pattern": _FUSES_ELEMENTWISE},
        )

    def _rounded(self, data: relax.Expr, weight: PackedWeight) -> tuple[relax.Expr, relax.Expr] | None:
        """Return the integers [..., blocks, block] and the scales [..., blocks, 1] of rounded data."""
        blocks, _, columns = weight.codes.shape
        product = self._bound(data, "relax.reshape")
        product = None if product is None else self._bound(product.args[0], "relax.multiply")
        if product is None or weight.zeros.dtype != np.uint8:
            return None
        integers, scale = product.args
        is_rounded = self._bound(integers, "relax.round") is not None
        shape = static_shape(integers) or ()
        fits = shape[-2:] == (blocks, weight.block) and weight.block % (HALVES * NEIGHBOURS) == 0
        has_instructions = block_instructions(self._features, columns) is not None
        return (integers, scale) if is_rounded and fits and blocks > 1 and has_instructions else None

    def _bound(self, expr: relax.Expr, name: str) -> Call | None:
        """Return the call of this operator that a variable is bound to."""
        call: Any = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return call if getattr(getattr(call, "op", None), "name", "") == name else None

    def _emit(self, expr: relax.Expr) -> relax.Expr:
        return self.builder_.emit(expr)


def _rounded_product(
    scale: te.Tensor, rows: te.Tensor, codes: te.Tensor, scales: te.Tensor, zeros: te.Tensor
) -> te.Tensor:
    """Multiply rows [..., blocks, steps, halves, 4] by codes [blocks, steps, 4, columns] of four bits, or
    [blocks, steps, halves, 4, columns] of eight.
    """
    blocks, steps, *_, neighbours, columns = codes.shape
    b, p = te.reduce_axis((0, blocks), "b"), te.reduce_axis((0, steps), "p")
    h, r = te.reduce_axis((0, tirx.const(HALVES, "int64")), "h"), te.reduce_axis((0, neighbours), "r")

    def multiply(*place: tirx.Expr) -> tirx.Expr:
        *row, j = place
        if len(codes.shape) == 5:
            code = codes[b, p, h, r, j].astype("int32")
        else:
            code = (codes[b, p, r, j].astype("int32") >> (h.astype("int32") * 4)) & 15
        zero = (zeros[0, 0] if math.prod(map(int, zeros.shape)) == 1 else zeros[b, j]).astype("int32")
        product = (rows[(*row, b, p, h, r)].astype("int32") * (code - zero)).astype("float32")
        return te.sum(scale[(*row, b)] * scales[b, j] * product, axis=[b, p, h, r])

    return te.compute((*scale.shape[:-1], columns), multiply, name="product")
