"""Rewrite the PrimFuncs of a module right before TVM compiles it."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.tirx import PrimFunc


def rewrite_prim_funcs(
    module: tvm.IRModule, target: tvm.target.Target, rewrite: Callable[[PrimFunc], PrimFunc]
) -> tvm.IRModule:
    """Rewrite all PrimFuncs if LLVM generates the code; return the module itself for other targets."""
    if target.kind.name != "llvm":
        return module
    functions = {
        name: rewrite(function) if isinstance(function, PrimFunc) else function
        for name, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
