"""TVM's own modules as JSON: relax functions with the TIR functions that they call, or one TIR function.

A module can do more than compute: call any function of a process, bring C or LLVM code along, or be a
schedule already. So the kinds of its objects, the operators that it calls and its annotations are held
against what models need, before TVM sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx

from compiler.constants.fold import static_shape
from compiler.importing.formats.model_file import Content, check_shapes
from compiler.importing.model import RelaxModel, checked_model
from compiler.importing.spec import ModelError, Shape, TensorSpec, first_line
from compiler.reading.indices import find_all

KERNEL = "kernel"
MAX_TEXT_BYTES = 1 << 30
TYPES = frozenset(
    (
        *("None", "bool", "int", "float", "DataType", "ffi.Array", "ffi.Map", "ffi.String", "ffi.Shape"),
        *("ffi.Tensor", "ir.Call", "ir.DictAttrs", "ir.FloatImm", "ir.GenericConst", "ir.GlobalVar"),
        *("ir.IRModule", "ir.IntImm", "ir.Op", "ir.PrimType", "ir.Range", "ir.SourceMap", "ir.TensorLoad"),
        *("ir.TensorRegion", "ir.Tuple", "ir.TupleGetItem", "ir.TupleType", "ir.Type", "ir.Var"),
        *("relax.FuncType", "relax.ObjectType", "relax.ShapeType", "relax.TensorType"),
        *("relax.expr.BindingBlock", "relax.expr.DataflowBlock", "relax.expr.DataflowVar"),
        *("relax.expr.Function", "relax.expr.SeqExpr", "relax.expr.ShapeExpr", "relax.expr.VarBinding"),
        *("relax.expr.Constant", "relax.expr.Tuple", "relax.expr.TupleGetItem", "relax.expr.PrimValue"),
        *("relax.expr.DataTypeImm", "relax.expr.MatchCast"),
        *("s_tir.SBlock", "s_tir.SBlockRealize", "tirx.BufferRegionType", "tirx.BufferStore"),
        *("tirx.BufferType", "tirx.Bind", "tirx.Evaluate", "tirx.For", "tirx.IfThenElse", "tirx.IterVar"),
        *("tirx.PrimFunc", "tirx.SeqStmt", "tirx.Select", "tirx.CommReducer", "tirx.Reduce"),
    )
)
_TYPE_FAMILIES = re.compile(r"prim\.\w+|relax\.attrs\.(?!Call|Hint|ToVDevice)\w+")
# Relax's operators, but for those that call, print, or manage memory and devices.
_RELAX = re.compile(
    r"relax\.((nn|image|vision)\.\w+"
    r"|call_tir|(?!call_|invoke_|print$|assert_op$|hint_on_|to_vdevice$|shape_to_|tensor_to_shape$)\w+)"
)
_TIR = frozenset(
    f"tirx.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh"),
        *("erf", "exp", "exp10", "exp2", "fabs", "floor", "fma", "fmod", "hypot", "if_then_else", "isfinite"),
        *("isinf", "isnan", "ldexp", "likely", "log", "log10", "log1p", "log2", "nearbyint", "nextafter"),
        *("popcount", "pow", "round", "rsqrt", "shift_left", "shift_right", "sigmoid", "sin", "sinh", "sqrt"),
        *("tan", "tanh", "trunc", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "clz"),
        *("max_value", "min_value", "reinterpret", "q_multiply_shift"),
    )
) | {"prim.ceil", "prim.clz", "prim.if_then_else", "prim.likely", "prim.log2"}
_ATTRIBUTES = frozenset(
    (
        *("global_symbol", "tirx.noalias", "s_tir", "num_input", "op_pattern", "layout_free_buffers"),
        *("tirx.is_entry_func", "relax.force_pure", "T.noalias"),
    )
)
_ANNOTATIONS = frozenset(("layout_free_placeholders", "schedule_rule", "const_args"))


@dataclass(frozen=True)
class TvmModule:
    """A module whose `main` is a relax function."""

    module: tvm.IRModule
    inputs: tuple[TensorSpec, ...]

    def to_relax(self) -> RelaxModel:
        result = self.module["main"].ret_ty
        count = len(result.fields) if isinstance(result, relax.TupleType) else 1
        return checked_model(self.module, self.inputs, [f"output{number}" for number in range(count)])


def read(content: Content, shapes: Mapping[str, Shape]) -> TvmModule:
    if len(content) > MAX_TEXT_BYTES:
        raise ModelError(f"a TVM module has at most {MAX_TEXT_BYTES} bytes, not {len(content)}")
    text = bytes(content).decode(errors="replace")
    _check(text)
    try:
        module = tvm.ir.load_json(text)
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
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise ModelError(
            f"the TVM module can't be read ({first_line(error)}): write it with TVM {tvm.__version__}, "
            "by tvm.ir.save_json"
        ) from error
    check_shapes(inputs, shapes)
    return TvmModule(module, inputs)


def to_json(source: tvm.IRModule | tirx.PrimFunc | Sequence[te.Tensor]) -> str:
    """Return a module, a TIR function, or what tensor expressions compute, as the text that `read` reads.

    The tensors are those of te.create_prim_func: inputs, then outputs.
    """
    if isinstance(source, Sequence):
        source = te.create_prim_func(list(source))
    if isinstance(source, tirx.PrimFunc):
        source = tvm.IRModule({"main": source})
    return str(tvm.ir.save_json(source))


def _check(text: str) -> None:
    """Raise ModelError for what no model needs."""
    try:
        nodes = json.loads(text)["nodes"]
        for kind, node in [(node["type"], node) for node in nodes]:
            if kind not in TYPES and not _TYPE_FAMILIES.fullmatch(kind):
                raise ModelError(
                    f"the TVM module contains a {kind}, which no model needs: only computation is read"
                )
            if kind == "ir.Op" and not (_RELAX.fullmatch(node["data"]) or node["data"] in _TIR):
                raise ModelError(
                    f"the TVM module calls '{node['data']}': only operators that compute are read, and no "
                    "calls of functions from elsewhere"
                )
            if kind == "ir.DictAttrs":
                _check_keys(nodes, node["data"]["__dict__"], _ATTRIBUTES)
            if kind in ("s_tir.SBlock", "tirx.For"):
                _check_keys(nodes, node["data"]["annotations"], _ANNOTATIONS)
            if kind == "tirx.For" and node["data"]["kind"]:
                raise ModelError("the TVM module is scheduled already: give it as it was before that")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError("this JSON is no TVM module: write it with tvm.ir.save_json(module)") from error


def _check_keys(nodes: Sequence[Any], position: int, allowed: frozenset[str]) -> None:
    for key in _keys(nodes, position):
        if key not in allowed:
            raise ModelError(
                f"the TVM module has an annotation '{key}', which may change more than what is computed: "
                "give it as it was before it was scheduled or compiled"
            )


def _keys(nodes: Sequence[Any], position: int) -> Iterator[str]:
    if nodes[position]["type"] == "ffi.Map":
        for key in nodes[position]["data"][::2]:
            yield nodes[key]["data"]


def _calling(kernel: tirx.PrimFunc) -> tvm.IRModule:
    """Return a module whose `main` calls a TIR function, of which the last parameters are outputs.

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
