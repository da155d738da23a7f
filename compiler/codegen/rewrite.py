"""Rewriting the functions of a module right before TVM compiles it."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm.tirx import PrimFunc


def for_cpus(
    module: tvm.IRModule, target: tvm.target.Target, rewrite: Callable[[PrimFunc], PrimFunc]
) -> tvm.IRModule:
    """The module with all PrimFuncs rewritten where LLVM generates the code; itself elsewhere."""
    if target.kind.name != "llvm":
        return module
    functions = {
        name: rewrite(function) if isinstance(function, PrimFunc) else function
        for name, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
