"""Rewrite the PrimFuncs of a module right before TVM compiles it."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.tirx import PrimFunc


def rewrite_prim_funcs(module: tvm.IRModule, rewrite: Callable[[PrimFunc], PrimFunc]) -> tvm.IRModule:
    functions = {
        name: rewrite(function) if isinstance(function, PrimFunc) else function
        for name, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)


def rewrite_for_llvm(
    module: tvm.IRModule, target: tvm.target.Target, rewrite: Callable[[PrimFunc], PrimFunc]
) -> tvm.IRModule:
    """Rewrite all PrimFuncs if LLVM generates the code; return the module itself for other targets."""
    return rewrite_prim_funcs(module, rewrite) if target.kind.name == "llvm" else module
