"""Find the subgraphs that variants of a model change, and build the model with some of these changes.

A variant rewrites operators one by one and leaves it to TVM how they are fused, so the model calls as many
kernels, in the same order, with it as without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.importing.model import (
    ExtractedTask,
    RelaxModel,
    convert_operators,
    extract_tasks,
    fuse_operators,
    kernel_calls,
)
from compiler.variants.winograd import Winograd


class Variant(Protocol):
    """Another way to compute some operators of a model, called `name`."""

    name: str

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the operators of a model that the variant applies to; None when there is none."""


VARIANTS: tuple[Variant, ...] = (Winograd(2), Winograd(4))


@dataclass(frozen=True)
class VariantModel:
    """A model as calls of fused kernels, and the same under each variant that changes some of them."""

    fused: tvm.IRModule
    variants: Mapping[str, tvm.IRModule]

    @classmethod
    def of(cls, model: RelaxModel, target: str) -> VariantModel:
        """Raises ModelError when TVM can't compile the model."""
        operators = convert_operators(model, target)
        rewritten = {variant.name: variant.rewrite(operators) for variant in VARIANTS}
        return cls(
            fuse_operators(operators, target),
            {
                name: fuse_operators(module, target)
                for name, module in rewritten.items()
                if module is not None
            },
        )

    def tasks(self) -> list[ExtractedTask]:
        """Return the tasks of the model, then the tasks of variants that may replace one of them."""
        tasks = extract_tasks(self.fused)
        weights = {task.workload_hash: task.weight for task in tasks}
        for name, variant in self.variants.items():
            for workload, task in _counterparts(self.fused, variant).items():
                tasks.append(replace(task, weight=weights[workload], variant=name, variant_of=workload))
        return tasks

    def choose(self, workloads: Collection[str]) -> tvm.IRModule:
        """Replace kernels of the model by those of variants whose workloads are among `workloads`.

            gv = call_tir(fused_conv2d_add_relu, (x, weight, bias))
        ->
            gv = call_tir(fused_winograd_4_conv2d_add_relu, (x, weight', bias))
        """
        chosen = self.fused
        for variant in self.variants.values():
            places = {
                place
                for place, task in _counterparts(chosen, variant).items()
                if task.workload_hash in workloads
            }
            if places:
                chosen = _replace_kernels(chosen, variant, places)
        return chosen


def _counterparts(fused: tvm.IRModule, variant: tvm.IRModule) -> dict[str, ExtractedTask]:
    """Map workloads of the model to the tasks of a variant that compute the same. Empty when the two modules
    can't be compared call by call."""
    calls, others = kernel_calls(fused), kernel_calls(variant)
    has_subroutines = any(
        isinstance(function, relax.Function) and name.name_hint != "main"
        for name, function in fused.functions_items()
    )
    if has_subroutines or len(calls) != len(others):
        return {}
    tasks = {name: task for task in extract_tasks(fused) for name in task.functions}
    counterparts = {name: task for task in extract_tasks(variant) for name in task.functions}
    pairs = [
        (tasks.get(_name(call)), counterparts.get(_name(other)))
        for call, other in zip(calls, others, strict=True)
    ]
    return {
        task.workload_hash: other
        for task, other in pairs
        if task is not None and other is not None and task.workload_hash != other.workload_hash
    }


def _replace_kernels(fused: tvm.IRModule, variant: tvm.IRModule, workloads: Collection[str]) -> tvm.IRModule:
    """Call a variant's kernels, with its constants, instead of the kernels that compute `workloads`."""
    functions = {
        name for task in extract_tasks(fused) if task.workload_hash in workloads for name in task.functions
    }
    replacer = _KernelReplacer(fused, variant, functions, iter(kernel_calls(variant)))
    main = replacer.visit_expr(fused["main"])
    module = replacer.builder_.get()
    module[module.get_global_var("main")] = main
    return relax.transform.DeadCodeElimination()(module)


@relax.expr_functor.mutator
class _KernelReplacer(relax.PyExprMutator):
    """Replaces calls of `functions` by those of a variant. `calls` are all kernel calls of the variant, in
    the order in which they are visited."""

    def __init__(
        self,
        fused: tvm.IRModule,
        variant: tvm.IRModule,
        functions: Collection[str],
        calls: Iterator[Call],
    ) -> None:
        super().__init__(fused)
        self._variant = variant
        self._functions = functions
        self._calls = calls

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not getattr(call.op, "name", "").startswith("relax.call_tir"):
            return call
        other = next(self._calls)
        if _name(call) not in self._functions:
            return call
        kernel = self.builder_.add_func(self._variant[other.args[0]], _name(other))
        arguments = [
            counterpart if isinstance(counterpart, GenericConst) else argument
            for argument, counterpart in zip(call.args[1], other.args[1], strict=True)
        ]
        return Call(call.op, [kernel, relax.Tuple(arguments)], call.attrs, call.ty_args)


def _name(call: Call) -> str:
    return str(call.args[0].name_hint)
