"""TVM's own modules as JSON: relax functions with the TIR functions that they call, or one TIR function.

A module can do more than compute: call any function of the process, contain C or LLVM code, or be scheduled
already. So the kinds of its objects, its operators and its annotations are checked against the vocabulary of
models (`compiler.vocabulary`) before TVM reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

from compiler.constants.fold import static_shape
from compiler.importing.formats.model_file import Content, check_shapes
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.spec import ModelError, Shape, TensorSpec, first_line
from compiler.object_graph import GraphRefused, ObjectGraph, Part
from compiler.tir_nodes import find_all
from compiler.vocabulary import MODULE

KERNEL = "kernel"
MAX_TEXT_BYTES = 1 << 30
_OBJECT = "the TVM module contains a {}, which no model needs: only computation is read"
_ANNOTATED = (
    "the TVM module has an annotation '{}', which may change more than what is computed: give it as it was "
    "before it was scheduled or compiled"
)
_SCHEDULED = "the TVM module is scheduled already ({}): give it as it was before that"
_REFUSALS = {
    Part.KIND: _OBJECT,
    Part.OPERATOR: (
        "the TVM module calls '{}': only operators that compute are read, and no calls of functions from "
        "elsewhere"
    ),
    Part.TEXT: _OBJECT,
    Part.ATTRIBUTE: _ANNOTATED,
    Part.ANNOTATION: _ANNOTATED,
    Part.LOOP: _SCHEDULED,
    Part.SCOPE: _SCHEDULED,
    Part.THREAD: _SCHEDULED,
}


@dataclass(frozen=True)
class TvmModule:
    """A module whose `main` is a relax function."""

    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]

    @property
    def output_names(self) -> tuple[str, ...]:
        result = self.module["main"].ret_ty
        count = len(result.fields) if isinstance(result, relax.TupleType) else 1
        return tuple(f"output{number}" for number in range(count))

    def to_relax(self) -> RelaxModel:
        return checked_model(self.module, self.inputs, self.output_names)


def read(content: Content, shapes: Mapping[str, Shape]) -> TvmModule:
    if len(content) > MAX_TEXT_BYTES:
        raise ModelError(f"a TVM module has at most {MAX_TEXT_BYTES} bytes, not {len(content)}")
    try:
        module = _load(bytes(content).decode(errors="replace"))
        functions = {name.name_hint: function for name, function in module.functions_items()}
        kernels = {
            name: function for name, function in functions.items() if isinstance(function, tirx.PrimFunc)
        }
        if len(functions) == 1 and kernels:
            module = _calling(next(iter(kernels.values())))
        elif not isinstance(functions.get("main"), relax.Function):
            raise ModelError(
                "the TVM module has no relax function called main, and more than one TIR function"
            )
        main = module["main"]
        inputs = tuple(_spec(param) for param in main.params)
        main = main.with_attr("num_input", len(inputs))
        module.update_func(module.get_global_var("main"), main)
        module = relax.transform.Normalize()(module)
        relax.analysis.well_formed(module)
    except ModelError:
        raise
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise ModelError(
            f"the TVM module can't be read ({first_line(error)}): write it with TVM {tvm.__version__}, "
            "by tvm.ir.save_json"
        ) from error
    check_shapes(inputs, shapes)
    return TvmModule(module, inputs)


def to_json(source: tvm.IRModule | tirx.PrimFunc | Sequence[te.Tensor]) -> str:
    """Convert a module, a TIR function, or tensor expressions to JSON for `read`.

    The tensors are in the order of te.create_prim_func: inputs, then outputs.
    """
    if isinstance(source, Sequence):
        source = te.create_prim_func(list(source))
    if isinstance(source, tirx.PrimFunc):
        source = tvm.IRModule({"main": source})
    return str(tvm.ir.save_json(source))


def _load(text: str) -> Any:
    """Return the objects in a JSON text. Raises ModelError for objects that no model needs, and TVM's
    exceptions."""
    try:
        graph = ObjectGraph.parse(text)
        foreign = MODULE.foreign(graph)
        if foreign:
            part, name = min(foreign, key=lambda one: one[0] is not Part.OPERATOR)
            raise ModelError(_REFUSALS[part].format(name[:64]))
        return graph.load()
    except GraphRefused as error:
        raise ModelError(
            f"this JSON is no TVM module ({error}): write it with tvm.ir.save_json(module)"
        ) from error


def _calling(kernel: tirx.PrimFunc) -> tvm.IRModule:
    """Return a module whose `main` calls a TIR function. The function's last parameters are outputs.

    def main(a, b): return call_tir(kernel, (a, b))
    """
    written = [store.buffer for store in find_all(kernel.body, tirx.BufferStore)]
    is_output = [any(param.same_as(buffer) for buffer in written) for param in kernel.params]
    count = sum(is_output)
    if not count or not all(is_output[-count:]):
        raise ModelError(
            "a TIR function is tuned whose last parameters, and no others, are those it writes to"
        )
    types = [relax.TensorType(list(param.ty.shape), param.ty.dtype) for param in kernel.params]
    inputs = [
        relax.Var(param.name, kind)
        for param, kind in zip(kernel.params[:-count], types[:-count], strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", params=inputs):
        with builder.dataflow():
            name = builder.add_func(kernel.without_attr("global_symbol"), KERNEL)
            results = types[-count:]
            call = relax.call_tir(name, inputs, results if count > 1 else results[0])
            output = builder.emit_output(call)
        builder.emit_func_output(output)
    return builder.get()


def _spec(param: relax.Var) -> TensorSpec:
    shape = static_shape(param) if isinstance(param.ty, relax.TensorType) else None
    if shape is None:
        raise ModelError(f"parameter '{param.name}' of the TVM module is no tensor of a static shape")
    return TensorSpec(param.name, shape, str(param.ty.dtype))
