"""The instructions of tensor cores for bfloat16, which TVM has none of: its generators make them."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import TensorIntrin

SIDES = (16, 16, 16)
SHARED = "shared.dyn"


def register(name: str, generators: Any) -> None:
    """Register what loads fragments or multiplies them, under a name like those of TVM's own. `generators` is
    the module that makes these."""
    transposed = "_trans" in name
    if name.startswith("wmma_load"):
        is_second = "_b_" in name
        intrinsic = generators.get_wmma_load_intrin(*SIDES, "bfloat16", SHARED, is_second, transposed)
    else:
        intrinsic = generators.get_wmma_sync_intrin(*SIDES, "bfloat16", "float32", transposed)
    TensorIntrin.register(name, *intrinsic)
