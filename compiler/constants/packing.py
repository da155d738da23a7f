"""Packing: constants of the model, laid out anew in the order in which a schedule reads them.

A trace packs as MetaSchedule does: it copies a constant operand in another layout, in a block that it marks.
TVM splits such a function in two, one that packs and one that computes; packing then happens once, ahead of
time.

    main(data, weight, result)  ->  pack(weight, packed) and main(data, packed, result)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax.transform import SplitLayoutRewritePreproc
from tvm.s_tir import SBlock

from compiler.constants.fold import rewrite_functions

# TVM's names: of the attribute that lists the constant operands, of the mark on a block that packs, and of
# what the split appends to the names of the two functions that it makes.
LAYOUT_FREE = "layout_free_buffers"
MARK = "meta_schedule.layout_rewrite_preproc"
PACKING_SUFFIX = "_weight_prepack"
COMPUTE_SUFFIX = "_prepacked"
KERNEL = "kernel"


@dataclass(frozen=True)
class PackedConstants:
    """How the two functions of a compiled workload are called, one that packs and one that computes.

    `pack` takes the arguments at `operands` and then the tensors that it fills; `main` takes those at the
    same positions. `shapes` and `dtypes` are theirs, the packed tensors'.
    """

    operands: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class PackedWorkload(PackedConstants):
    """A scheduled workload as two functions."""

    module: tvm.IRModule


def split_packing(scheduled: tvm.IRModule) -> PackedWorkload | None:
    """The two parts of a scheduled workload; None when it packs nothing, or an argument that is no constant.

    Raises what TVM raises where packing and computing can't be told apart.
    """
    func = scheduled["main"]
    packing = _packing_blocks(func)
    constants = func.attrs.get(LAYOUT_FREE, ())
    variable = [param for index, param in enumerate(func.params) if index not in constants]
    if not packing or any(_reads_one_of(block, variable) for block in packing):
        return None
    parts = SplitLayoutRewritePreproc()(_called(func))
    pack = parts[KERNEL + PACKING_SUFFIX].with_attr("global_symbol", "pack")
    main = parts[KERNEL + COMPUTE_SUFFIX].with_attr("global_symbol", "main")
    operands = _operands(parts["main"])
    packed = pack.params[len(operands) :]
    return PackedWorkload(
        operands=operands,
        shapes=tuple(_shape(param.ty.shape) for param in packed),
        dtypes=tuple(str(param.ty.dtype) for param in packed),
        module=tvm.IRModule({"pack": pack, "main": main}),
    )


def prepack(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of scheduled functions whose constants are packed now: at run time nothing is.

    Constants that are read plainly somewhere stay beside their packed copies, the others go.
    """
    kernels = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    if not any(map(_packing_blocks, kernels)):
        return mod
    parts = SplitLayoutRewritePreproc()(mod)
    packer = _Packer(parts)
    return rewrite_functions(parts, lambda function: _Folder(parts, packer).visit_expr(function))


def _packing_blocks(func: tirx.PrimFunc) -> list[SBlock]:
    blocks: list[SBlock] = []

    def collect(block: Any) -> None:
        if MARK in block.annotations:
            blocks.append(block)

    tvm_ffi.structural_walk(func.body, [(SBlock, collect)])
    return blocks


def _reads_one_of(block: SBlock, params: Sequence[Any]) -> bool:
    return any(block.reads[0].source.same_as(param) for param in params)


def _called(func: tirx.PrimFunc) -> tvm.IRModule:
    """The function with a caller, which is what TVM splits.

    The caller is made by hand, because builders of functions share a stack, and several threads build.
    """
    builder = relax.BlockBuilder()
    name = builder.add_func(func.with_attr("global_symbol", KERNEL), KERNEL)
    *inputs, output = map(_tensor_type, func.params)
    arguments = [relax.Var(f"argument{index}", kind) for index, kind in enumerate(inputs)]
    result = relax.Var("result", output)
    binding = relax.VarBinding(result, relax.call_tir(name, arguments, output))
    caller = relax.Function(arguments, relax.SeqExpr([relax.BindingBlock([binding])], result), output)
    builder.add_func(caller.with_attr("global_symbol", "main"), "main")
    return builder.finalize()


def _tensor_type(param: Any) -> relax.TensorType:
    return relax.TensorType(_shape(param.ty.shape), str(param.ty.dtype))


def _shape(extents: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in extents)


def _operands(caller: relax.Function) -> tuple[int, ...]:
    """Positions of the packed arguments, in the order in which the packing function takes them."""
    packing = caller.body.blocks[0].bindings[0].value
    params = list(caller.params)
    return tuple(
        next(i for i, param in enumerate(params) if param.same_as(argument)) for argument in packing.args[1]
    )


class _Packer:
    """Runs the packing functions of a module on this machine, whatever target the module is for."""

    def __init__(self, mod: tvm.IRModule) -> None:
        named = {name.name_hint: func for name, func in mod.functions_items()}
        packing = {
            name: func.with_attr("global_symbol", name)
            for name, func in named.items()
            if name.endswith(PACKING_SUFFIX)
        }
        self._library = tvm.compile(tvm.IRModule(packing), target="llvm")
        self._known: dict[tuple[Any, ...], relax.Expr] = {}

    def __call__(self, name: str, constants: Sequence[GenericConst], types: Sequence[Any]) -> relax.Expr:
        """A constant, or a tuple of them; one object for equal calls, so that the library holds it once."""
        key = (name, *constants)
        if key not in self._known:
            self._known[key] = self._run(name, constants, types)
        return self._known[key]

    def _run(self, name: str, constants: Sequence[GenericConst], types: Sequence[Any]) -> relax.Expr:
        packed = [tvm.runtime.empty(_shape(kind.shape.values), str(kind.dtype)) for kind in types]
        self._library[name](*(constant.value for constant in constants), *packed)
        values = [relax.const(tensor) for tensor in packed]
        return values[0] if len(values) == 1 else relax.Tuple(values)


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Puts the packed constants in the place of the calls that pack them."""

    def __init__(self, mod: tvm.IRModule, pack: Callable[..., relax.Expr]) -> None:
        super().__init__(mod)
        self._pack = pack

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if getattr(call.op, "name", "") != "relax.call_tir" or not isinstance(call.args[0], GlobalVar):
            return call
        arguments = list(call.args[1])
        name = call.args[0].name_hint
        if not name.endswith(PACKING_SUFFIX) or not all(isinstance(a, GenericConst) for a in arguments):
            return call
        kinds = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        return self._pack(name, arguments, kinds)
