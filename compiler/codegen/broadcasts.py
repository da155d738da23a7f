"""Broadcast bfloat16 values to vector lanes as uint16 bits, and round to bfloat16 by one instruction.

TVM's last pass stores bfloat16 as uint16. It converts the scalar of a broadcast, such as a maximum's initial
value, but not the broadcast itself. The types then differ, and TVM rejects the store.

TVM rounds to bfloat16 by integer operations. A CPU with AVX512_BF16 has an instruction, which takes subnormal
numbers as zero. So functions that only copy keep the integer operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import Add, Broadcast, Cast, Div, IntImm, Max, Min, Mul, PrimFunc, Sub

from compiler.codegen.bfloat16_buffers import COMPACT, has_dot_products, keep_bits
from compiler.codegen.bfloat16_instructions import bfloat16_bits
from compiler.codegen.rewrite import map_body, rewrite_prim_funcs, without_passes
from compiler.target import target_features
from compiler.tir_nodes import find_all, op_name

_STORE = "tirx.BF16StorageLegalize"
_ARITHMETIC = (Add, Sub, Mul, Div, Max, Min)
_COPYING = ("reinterpret", "if_then_else")


def store_bfloat16(module: tvm.IRModule, lower: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    """Lower a module, and rewrite its broadcasts and casts right before the last pass.

        B[i:i + 16] = T.Broadcast(x, 16)                                            # x: bfloat16
        B[i:i + 16] = T.reinterpret("bfloat16x16", T.Cast("uint16x16", ...))        # rounds y: float32x16
    ->
        B[i:i + 16] = T.reinterpret("bfloat16x16", T.Broadcast(T.reinterpret("uint16", x), 16))
        B[i:i + 16] = T.reinterpret("bfloat16x16", bfloat16_bits(y))                # with AVX512_BF16
    """
    disabled = [_STORE]
    if has_dot_products(module):
        module = keep_bits(module)
        disabled.append(COMPACT)
    with without_passes(*disabled):
        lowered = lower(module)
    return tirx.transform.BF16StorageLegalize()(rewrite_prim_funcs(lowered, _rewrite))


def _rewrite(function: PrimFunc) -> PrimFunc:
    target = function.attrs["target"]
    if target.kind.name != "llvm":
        return function
    rewriters: list[tuple[type, Callable[[Any], Any]]] = [(Broadcast, _as_bits)]
    if "avx512_bf16" in target_features(target) and _computes(function):
        rewriters.append((Cast, _by_instruction))
    return map_body(function, rewriters)


def _computes(function: PrimFunc) -> bool:
    """Return whether a function does more with floats than load, convert, select and store them."""
    called = [call for call in find_all(function.body, Call) if op_name(call) not in _COPYING]
    return any(
        str(getattr(each.ty, "dtype", "")).startswith("float")
        for each in (*called, *find_all(function.body, *_ARITHMETIC))
    )


def _as_bits(broadcast: Broadcast) -> Any:
    if not str(broadcast.ty.dtype).startswith("bfloat16"):
        return broadcast
    bits = Broadcast(tirx.reinterpret("uint16", broadcast.value), broadcast.lanes)
    return tirx.reinterpret(broadcast.ty.dtype, bits)


def _by_instruction(cast: Cast) -> Any:
    """Replace TVM's rounding of a vector x: its upper half, after half of the lower half's range was added.

    Cast("uint16x16", bits + ((bits >> 16 & 1) + 32767) >> 16)
    """
    dtype = str(cast.ty.dtype)
    if not dtype.startswith("uint16x"):
        return cast
    lanes = int(dtype.removeprefix("uint16x"))
    numbers = {int(number.value) for number in find_all(cast, IntImm)}
    floats = [one.args[0] for one in find_all(cast, Call) if op_name(one) == "reinterpret"]
    if not numbers >= {1, 16, 0x7FFF} or len(floats) != 2 or not tvm_ffi.structural_equal(*floats):
        return cast
    is_vector = str(floats[0].ty.dtype) == f"float32x{lanes}"
    return bfloat16_bits(floats[0], lanes) if is_vector else cast
