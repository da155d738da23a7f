"""Align the stack, so that vectors on it don't cross cache lines.

The stack of x86 is aligned to 16 bytes. If a function lacks registers, LLVM stores vectors of 32 or 64 bytes
on the stack, and doesn't align them. Where the stack lies depends on the caller. So every second vector of 32
bytes may cross a line, and one may cross a page, which takes several times as long as a vector in one line.
LLVM aligns the stack, and the vectors that it stores, if a function has an aligned local variable.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm
from tvm.tirx import AttrStmt, Evaluate, For, ForKind, PrimFunc, SeqStmt

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body, with_loop_body
from compiler.target import is_x86
from compiler.tir_nodes import statements_of

LINE_BYTES = 64
_NAME = "tunefarm_align_stack"
_SCOPE = "compute_scope"
# LLVM keeps a variable with a volatile store.
_FUNCTION = f"""
define linkonce_odr hidden i32 @{_NAME}() alwaysinline nounwind {{
  %line = alloca [{LINE_BYTES} x i8], align {LINE_BYTES}
  store volatile i8 0, ptr %line
  ret i32 0
}}
"""


def align_stack(module: tvm.IRModule) -> tvm.IRModule:
    """Align the stack of a module's functions for x86, and of their parallel loops, to cache lines.

    TVM's calling convention is part of the functions.
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    target = function.attrs.get("target")
    if target is None or target.kind.name != "llvm" or not is_x86(target):
        return function
    aligned = Evaluate(tirx.call_extern("int32", _NAME))

    # TVM makes functions of their own of these two.
    def align_loop(loop: For) -> For:
        if loop.kind != ForKind.PARALLEL:
            return loop
        return with_loop_body(loop, SeqStmt([aligned, *statements_of(loop.body)]))

    def align_scope(scope: AttrStmt) -> AttrStmt:
        if scope.attr_key != _SCOPE:
            return scope
        body = SeqStmt([aligned, *statements_of(scope.body)])
        return AttrStmt(scope.node, scope.attr_key, scope.value, body)

    body = tvm_ffi.structural_map(function.body, [(For, align_loop), (AttrStmt, align_scope)])
    if body.same_as(function.body):
        return function
    return with_body(function, AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_FUNCTION), body))
