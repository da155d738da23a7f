"""Broadcast bfloat16 values to vector lanes as uint16 bits.

TVM's last pass stores bfloat16 as uint16. It converts the scalar of a broadcast, such as a maximum's initial
value, but not the broadcast itself. The types then differ, and TVM rejects the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import Broadcast, PrimFunc

from compiler.codegen.rewrite import rewrite_prim_funcs

_STORE = "tirx.BF16StorageLegalize"


def store_bfloat16(module: tvm.IRModule, lower: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.IRModule:
    """Lower a module, and rewrite its broadcasts right before the last pass.

        B[i:i + 16] = T.Broadcast(x, 16)                                            # x: bfloat16
    ->
        B[i:i + 16] = T.reinterpret("bfloat16x16", T.Broadcast(T.reinterpret("uint16", x), 16))
    """
    outer = tvm.transform.PassContext.current()
    disabled = [*outer.disabled_pass, _STORE]
    with tvm.transform.PassContext(
        outer.opt_level, outer.required_pass, disabled, outer.instruments, dict(outer.config)
    ):
        lowered = lower(module)
    return tirx.transform.BF16StorageLegalize()(rewrite_prim_funcs(lowered, _rewrite))


def _rewrite(function: PrimFunc) -> PrimFunc:
    if function.attrs["target"].kind.name != "llvm":
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, (Broadcast, _as_bits)))


def _as_bits(broadcast: Broadcast) -> Any:
    if not str(broadcast.ty.dtype).startswith("bfloat16"):
        return broadcast
    bits = Broadcast(tirx.reinterpret("uint16", broadcast.value), broadcast.lanes)
    return tirx.reinterpret(broadcast.ty.dtype, bits)
