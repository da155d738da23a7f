"""Keep TVM's partitioning of loops whose last step is shorter.

TVM (0.27) narrows loop variables of int64 by making new ones, but leaves the old variable in a loop's hint.
The loop isn't partitioned then, and evaluates the condition of its last step for every lane of every step.
Shapes of imported models are int64.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import For, PrimFunc, Var

from compiler.codegen.rewrite import rewrite_for_llvm

HINT = "pragma_loop_partition_hint"


def count_in_int32(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Count the loops that TVM is to partition in int32, where LLVM generates the code.

        for k in T.serial(T.int64(7), annotations={"pragma_loop_partition_hint": 1}):
            C[k]
    ->
        for k in T.serial(7, annotations={"pragma_loop_partition_hint": 1}):
            C[T.Cast("int64", k)]
    """

    def rewrite(function: PrimFunc) -> PrimFunc:
        return function.with_body(tvm_ffi.structural_map(function.body, (For, _counted)))

    return rewrite_for_llvm(module, target, rewrite)


def _counted(loop: For) -> For:
    if HINT not in loop.annotations or str(loop.loop_var.ty.dtype) == "int32":
        return loop
    counter = Var(loop.loop_var.name, "int32")
    wide = counter.astype(str(loop.loop_var.ty.dtype))
    body = tvm_ffi.structural_map(loop.body, (Var, lambda var: wide if var.same_as(loop.loop_var) else var))
    start, extent = (tirx.const(int(bound), "int32") for bound in (loop.min, loop.extent))
    return For(counter, start, extent, loop.kind, body, annotations=loop.annotations)
