"""Pack constants of the model ahead of time, in the order in which a schedule reads them.

A trace packs as MetaSchedule does: a block that it marks copies a constant operand in another layout. TVM
splits such a function into one that packs and one that computes, and packing then happens once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, GenericConst, GlobalVar
from tvm.relax.transform import SplitLayoutRewritePreproc
from tvm.s_tir import SBlock

from compiler.constants.fold import rewrite_functions
from compiler.constants.permutations import permutations_of
from compiler.tir_nodes import find_all

# TVM's attribute of a function that lists its constant operands, and its annotation of a block that packs.
LAYOUT_FREE = "layout_free_buffers"
PACKING_ANNOTATION = "meta_schedule.layout_rewrite_preproc"
# SplitLayoutRewritePreproc appends these to the names of the two functions that it makes.
PACKING_SUFFIX = "_weight_prepack"
COMPUTE_SUFFIX = "_prepacked"
KERNEL = "kernel"
# The name of the function that packs.
PACK = "pack"


@dataclass(frozen=True)
class PackedConstants:
    """The constants that a compiled workload packs with its function `pack` and reads in its function `main`.

    `pack` takes the arguments at the positions `operands`, then the packed tensors, which it fills. `main`
    takes the packed tensors at these positions. `shapes` and `dtypes` describe the packed tensors.
    """

    operands: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class PackedWorkload(PackedConstants):
    """A scheduled workload split into the functions `pack` and `main` of `module`."""

    module: tvm.IRModule


def split_packing(scheduled: tvm.IRModule) -> PackedWorkload | None:
    """Split a scheduled workload into packing and computing.

        main(data, weight, result):
            for j, k: packed[k, j] = weight[j, k]
            for i, j, k: result[i, j] += data[i, k] * packed[k, j]
    ->
        pack(weight, packed):
            for j, k: packed[k, j] = weight[j, k]
        main(data, packed, result):
            for i, j, k: result[i, j] += data[i, k] * packed[k, j]

    Returns None when the workload packs nothing, or packs an argument that isn't constant. Raises what TVM
    raises when it can't separate the two.
    """
    func = scheduled["main"]
    packing = _packing_blocks(func)
    constants = func.attrs.get(LAYOUT_FREE, ())
    variable = [param for index, param in enumerate(func.params) if index not in constants]
    packed_sources = [block.reads[0].source for block in packing]
    if not packing or any(source.same_as(param) for source in packed_sources for param in variable):
        return None
    parts = SplitLayoutRewritePreproc()(_add_caller(func))
    pack = parts[KERNEL + PACKING_SUFFIX].with_attr("global_symbol", PACK)
    main = parts[KERNEL + COMPUTE_SUFFIX].with_attr("global_symbol", "main")
    caller = parts["main"]
    packing_call = caller.body.blocks[0].bindings[0].value
    operands = tuple(
        next(i for i, param in enumerate(caller.params) if param.same_as(argument))
        for argument in packing_call.args[1]
    )
    packed = pack.params[len(operands) :]
    return PackedWorkload(
        operands=operands,
        shapes=tuple(_shape(param.ty.shape) for param in packed),
        dtypes=tuple(str(param.ty.dtype) for param in packed),
        module=tvm.IRModule({PACK: pack, "main": main}),
    )


def prepack(mod: tvm.IRModule) -> tvm.IRModule:
    """Pack the constants of a module of scheduled functions now, so that nothing is packed at run time.

        gv = call_tir(dense, (x, weight))                     # packs the weight, then computes
    ->
        gv = call_tir(dense_prepacked, (x, packed_weight))    # computes

    A constant that other functions read unpacked stays in the module as well.
    """
    # TVM's pass fails for functions without blocks, such as scans.
    others = {
        name: func
        for name, func in mod.functions_items()
        if isinstance(func, tirx.PrimFunc) and not _packing_blocks(func)
    }
    rest = {name: func for name, func in mod.functions_items() if name not in others}
    if not any(isinstance(func, tirx.PrimFunc) for func in rest.values()):
        return mod
    parts = SplitLayoutRewritePreproc()(tvm.IRModule(rest, attrs=mod.attrs, global_infos=mod.global_infos))
    parts.update(others)
    packer = _Packer(parts)
    return rewrite_functions(parts, lambda function: _Folder(parts, packer).visit_expr(function))


def _packing_blocks(func: tirx.PrimFunc) -> list[SBlock]:
    return [block for block in find_all(func.body, SBlock) if PACKING_ANNOTATION in block.annotations]


def _add_caller(func: tirx.PrimFunc) -> tvm.IRModule:
    """Return a module in which a relax function calls the PrimFunc: the form that TVM's pass splits.

    The relax function is made without a block builder's `function` scope, whose stack all threads share.
    """
    builder = relax.BlockBuilder()
    name = builder.add_func(func.with_attr("global_symbol", KERNEL), KERNEL)
    *inputs, output = [relax.TensorType(_shape(param.ty.shape), str(param.ty.dtype)) for param in func.params]
    arguments = [relax.Var(f"argument{index}", kind) for index, kind in enumerate(inputs)]
    result = relax.Var("result", output)
    binding = relax.VarBinding(result, relax.call_tir(name, arguments, output))
    caller = relax.Function(arguments, relax.SeqExpr([relax.BindingBlock([binding])], result), output)
    builder.add_func(caller.with_attr("global_symbol", "main"), "main")
    return builder.finalize()


def _shape(extents: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in extents)


class _Packer:
    """Runs a module's packing functions on this machine, for any target of the module."""

    def __init__(self, mod: tvm.IRModule) -> None:
        named = {name.name_hint: func for name, func in mod.functions_items()}
        packing = {name: func for name, func in named.items() if name.endswith(PACKING_SUFFIX)}
        self._functions: dict[str, Any] = {name: permutations_of(func) for name, func in packing.items()}
        others = {name: func for name, func in packing.items() if self._functions[name] is None}
        self._functions.update(_compiled(others))
        self._results: dict[tuple[Any, ...], relax.Expr] = {}

    def __call__(self, name: str, constants: Sequence[GenericConst], types: Sequence[Any]) -> relax.Expr:
        """Return the packed constant, or a tuple of them. Equal calls return the same object, so that the
        library contains it once."""
        key = (name, *constants)
        if key not in self._results:
            packed = [tvm.runtime.empty(_shape(kind.shape.values), str(kind.dtype)) for kind in types]
            self._functions[name](*(constant.value for constant in constants), *packed)
            values = [relax.const(tensor) for tensor in packed]
            self._results[key] = values[0] if len(values) == 1 else relax.Tuple(values)
        return self._results[key]


def _compiled(functions: Mapping[str, tirx.PrimFunc]) -> dict[str, Any]:
    if not functions:
        return {}
    named = {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    library = tvm.compile(tvm.IRModule(named), target="llvm")
    return {name: library[name] for name in named}


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Replaces calls of packing functions by the packed constants."""

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
