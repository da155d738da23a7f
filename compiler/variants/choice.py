"""Find the subgraphs that variants of a model change, and build the model with some of these changes.

A variant rewrites operators one by one, and TVM fuses them. So the model calls the same number of kernels in
the same order, with or without the variant.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import tvm
import tvm_ffi
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
from compiler.target import capability_of, parse_target
from compiler.variants.flat_rows import FlatRows
from compiler.variants.floats import Floats
from compiler.variants.integer_winograd import IntegerWinograd
from compiler.variants.padded_columns import PaddedColumns
from compiler.variants.split_k import SplitK
from compiler.variants.subpixel import Subpixel
from compiler.variants.subpixel_winograd import SubpixelWinograd
from compiler.variants.tf32 import OLDEST as TF32_SINCE
from compiler.variants.tf32 import Tf32
from compiler.variants.winograd import Winograd
from core.profile import FLOAT32
from system import plugins


class Variant(Protocol):
    """Another way to compute some operators of a model, called `name`.

    An `exact` variant differs only in the order of sums, as schedules do.
    """

    name: str
    exact: bool

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the operators of a model to which the variant applies; None if there are none."""


# On CPUs, dot products of bfloat16 compete with fewer products of float32.
CPU_VARIANTS: tuple[Variant, ...] = tuple(Winograd(tile, (FLOAT32, "bfloat16")) for tile in (2, 4))
VARIANTS: tuple[Variant, ...] = (Subpixel(), SubpixelWinograd(), PaddedColumns(), Floats())
# On CPUs, AddRfactor divides sums among the cores. Blocks of a GPU can't wait for each other.
GPU_VARIANTS: tuple[Variant, ...] = (SplitK(4), SplitK(16))


def all_variants(target: str, tf32: bool = False) -> tuple[Variant, ...]:
    """Return the variants for a target, plug-ins' variants last. With `tf32`, the variant `tf32` is among
    them if the target's tensor cores know TF32. Raises PluginError."""
    parsed = parse_target(target)
    capability = capability_of(parsed)
    if capability:
        own: tuple[Variant, ...] = (Winograd(2), Winograd(4), *VARIANTS, *GPU_VARIANTS)
    else:
        own = (*CPU_VARIANTS, IntegerWinograd(parsed), FlatRows(parsed), *VARIANTS)
    if tf32 and capability >= TF32_SINCE:
        own += (Tf32(),)
    return (*own, *(one.value for one in plugins.extensions(plugins.VARIANTS)))


@dataclass(frozen=True)
class VariantModel:
    """A model as calls of fused kernels, and the same under each variant that changes some of them; `exact`
    are the names of exact ones."""

    fused: tvm.IRModule
    variants: Mapping[str, tvm.IRModule]
    exact: Collection[str]

    @classmethod
    def of(cls, model: RelaxModel, target: str, tf32: bool = False) -> VariantModel:
        """Raises ModelError if TVM can't compile the model."""
        operators = convert_operators(model, target)
        fused = fuse_operators(operators, target)
        variants, exact = {}, set()
        for variant in all_variants(target, tf32):
            try:
                rewritten = variant.rewrite(operators)
                changed = None if rewritten is None else fuse_operators(rewritten, target)
            except Exception:  # TVM's C++ code may raise any exception class; the variant is left out
                changed = None
            if changed is not None and _is_comparable(fused, changed):
                variants[variant.name] = changed
                exact |= {variant.name} if variant.exact else set()
        return cls(fused, variants, exact)

    def tasks(self) -> list[ExtractedTask]:
        """Return the tasks of the model, then the tasks of variants that may replace one of them."""
        own = extract_tasks(self.fused)
        replaced = {name: task for task in own for name in task.functions}
        found = {task.workload_hash: task for task in own}
        for name, variant in self.variants.items():
            tasks = {function: task for task in extract_tasks(variant) for function in task.functions}
            for call, other in zip(kernel_calls(self.fused), kernel_calls(variant), strict=True):
                place, task = replaced.get(_name(call)), tasks.get(_name(other))
                if place is not None and task is not None and task.workload_hash not in found:
                    found[task.workload_hash] = replace(
                        task,
                        weight=place.weight,
                        variant=name,
                        variant_of=place.workload_hash,
                        exact=name in self.exact,
                        layer=place.layer,
                    )
        return list(found.values())

    def choose(self, workloads: Collection[str]) -> tvm.IRModule:
        """Replace kernels of the model by kernels of variants whose workloads are among `workloads`.

            gv = call_tir(fused_conv2d_add_relu, (x, weight, bias))
        ->
            gv = call_tir(fused_winograd_4_conv2d_add_relu, (x, weight', bias))
        """
        wanted = set(workloads) - {task.workload_hash for task in extract_tasks(self.fused)}
        # The variant and its replacing call, by the position of the replaced call.
        chosen: dict[int, tuple[tvm.IRModule, Call]] = {}
        for variant in self.variants.values():
            tasks = [task for task in extract_tasks(variant) if task.workload_hash in wanted]
            functions = {name for task in tasks for name in task.functions}
            for position, call in enumerate(kernel_calls(variant)):
                if _name(call) in functions:
                    chosen[position] = variant, call
        if not chosen:
            return self.fused
        replacer = _KernelReplacer(self.fused, chosen)
        main = replacer.visit_expr(self.fused["main"])
        module = replacer.builder_.get()
        module[module.get_global_var("main")] = main
        return relax.transform.DeadCodeElimination()(module)


def _is_comparable(fused: tvm.IRModule, variant: tvm.IRModule) -> bool:
    """Return whether the kernel calls of two modules correspond, in their order in `main`."""
    functions = [name for name, each in fused.functions_items() if isinstance(each, relax.Function)]
    own, others = ([call.ty for call in kernel_calls(module)] for module in (fused, variant))
    return len(functions) == 1 and len(own) == len(others) and all(map(tvm_ffi.structural_equal, own, others))


@relax.expr_functor.mutator
class _KernelReplacer(relax.PyExprMutator):
    """Replaces kernel calls by calls of variants, by their position in the program."""

    def __init__(self, fused: tvm.IRModule, chosen: Mapping[int, tuple[tvm.IRModule, Call]]) -> None:
        super().__init__(fused)
        self._chosen = chosen
        self._positions = itertools.count()

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not getattr(call.op, "name", "").startswith("relax.call_tir"):
            return call
        position = next(self._positions)
        if position not in self._chosen:
            return call
        variant, other = self._chosen[position]
        kernel = self.builder_.add_func(variant[other.args[0]], _name(other))
        # The variant may have other constants, but computes with the same values in the same order.
        values = iter([argument for argument in call.args[1] if not isinstance(argument, GenericConst)])
        arguments = [one if isinstance(one, GenericConst) else next(values) for one in other.args[1]]
        return Call(call.op, [kernel, relax.Tuple(arguments)], call.attrs, call.ty_args)


def _name(call: Call) -> str:
    return str(call.args[0].name_hint)
