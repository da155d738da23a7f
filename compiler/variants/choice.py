"""Which subgraphs a variant changes, and the model with the variant of some of them.

A variant rewrites operators one by one and leaves it to TVM how they are fused, so the model under it calls as
many kernels, in the same order, as without it.
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.importing.model import ExtractedTask, extract_tasks, kernel_calls


def counterparts(fused: tvm.IRModule, variant: tvm.IRModule) -> dict[str, ExtractedTask]:
    """The tasks of the model under a variant that aren't tasks of the model, by the workload whose place they
    take. Empty when the two can't be compared call by call."""
    functions = {name: task.workload_hash for task in extract_tasks(fused) for name in task.functions}
    tasks = {name: task for task in extract_tasks(variant) for name in task.functions}
    pairs = list(zip(kernel_calls(fused), kernel_calls(variant), strict=False))
    if len(pairs) != len(kernel_calls(fused)) or len(pairs) != len(kernel_calls(variant)):
        return {}
    found: dict[str, ExtractedTask] = {}
    for call, other in pairs:
        workload, task = functions.get(_name(call)), tasks.get(_name(other))
        if workload is not None and task is not None and task.workload_hash != workload:
            found[workload] = task
    return found


def with_variant(fused: tvm.IRModule, variant: tvm.IRModule, workloads: Collection[str]) -> tvm.IRModule:
    """The model with the kernels of a variant, and their constants, in place of those of the workloads.

    call_tir(conv2d_add_relu, x, weight, bias)  ->  call_tir(winograd4x4_add_relu, x, weight', bias)
    """
    functions = {name for task in extract_tasks(fused) if task.workload_hash in workloads for name in task.functions}
    replaced = _Replacer(fused, variant, functions)
    main = replaced.visit_expr(fused["main"])
    module = replaced.builder_.get()
    module[module.get_global_var("main")] = main
    return relax.transform.DeadCodeElimination()(module)


@relax.expr_functor.mutator
class _Replacer(relax.PyExprMutator):
    """Calls kernels of `variant` in place of `functions`, call by call in the order of the program."""

    def __init__(self, fused: tvm.IRModule, variant: tvm.IRModule, functions: Collection[str]) -> None:
        super().__init__(fused)
        self._others = iter(kernel_calls(variant))
        self._variant = variant
        self._functions = functions

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not getattr(call.op, "name", "").startswith("relax.call_tir"):
            return call
        other = next(self._others)
        if _name(call) not in self._functions:
            return call
        kernel = self.builder_.add_func(self._variant[other.args[0]], _name(other))
        arguments = [
            theirs if isinstance(theirs, GenericConst) else ours
            for ours, theirs in zip(call.args[1], other.args[1], strict=True)
        ]
        return Call(call.op, [kernel, relax.Tuple(arguments)], call.attrs, call.ty_args)


def _name(call: Call) -> str:
    return str(call.args[0].name_hint)
