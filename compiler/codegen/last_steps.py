"""Make TVM partition loops whose last iteration is shorter.

TVM 0.27 replaces int64 loop variables by new int32 ones, but a loop's partition hint keeps the old variable.
TVM then doesn't partition the loop, and every lane of every iteration evaluates the condition of the last
one. Shapes of imported models are int64.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import For, PrimFunc, Var

from compiler.codegen.rewrite import map_body, rewrite_for_llvm

HINT = "pragma_loop_partition_hint"


def count_in_int32(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Give the loops that TVM should partition int32 variables, if LLVM generates the code.

        for k in T.serial(T.int64(7), annotations={"pragma_loop_partition_hint": 1}):
            C[k]
    ->
        for k in T.serial(7, annotations={"pragma_loop_partition_hint": 1}):
            C[T.Cast("int64", k)]
    """

    def rewrite(function: PrimFunc) -> PrimFunc:
        return map_body(function, (For, _counted))

    return rewrite_for_llvm(module, target, rewrite)


def _counted(loop: For) -> For:
    if HINT not in loop.annotations or str(loop.loop_var.ty.dtype) == "int32":
        return loop
    counter = Var(loop.loop_var.name, "int32")
    wide = counter.astype(str(loop.loop_var.ty.dtype))
    body = tvm_ffi.structural_map(loop.body, (Var, lambda var: wide if var.same_as(loop.loop_var) else var))
    start, extent = (tirx.const(int(bound), "int32") for bound in (loop.min, loop.extent))
    return For(counter, start, extent, loop.kind, body, annotations=loop.annotations)
