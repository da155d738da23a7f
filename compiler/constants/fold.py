"""Fold constants with numpy.

TVM's FoldConstant legalizes every call, and compiles an unscheduled kernel for every expression of constants:
seconds for a ResNet. The importer and the layout conversion leave few and simple expressions behind: numpy
evaluates those first, and FoldConstant gets only the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call, GenericConst

Array = NDArray[np.generic]

# A larger result stays an expression, or folding could fill the memory.
MAX_CONSTANT_BYTES = 512 << 20


def fold_constants(mod: tvm.IRModule, *, widen: bool = False) -> tvm.IRModule:
    """Replace every expression of constants that numpy can evaluate by its value.

        lv = permute_dims(w, axes=[2, 3, 1, 0])
        gv = conv2d(x, lv)
    ->
        gv = conv2d(x, w')

    Dequantized weights stay expressions, because kernels of bytes read the bytes; with `widen`, they become
    floats, as biases do.
    """
    return rewrite_functions(mod, lambda function: _ConstantFolder(mod, widen).visit_expr(function))


def fold_others(mod: tvm.IRModule) -> tvm.IRModule:
    """Fold as TVM's FoldConstant does, but give it only the calls that it may fold.

        lv = round(w)
        lv1 = add(x, lv)
        gv = relu(lv1)
    ->
        lv1 = add(x, w')        # FoldConstant got lv = round(w)
        gv = relu(lv1)
    """
    functions = {name: each for name, each in mod.functions_items() if isinstance(each, relax.Function)}
    found = {name: _foldable(function) for name, function in functions.items()}
    if any(bindings is None for bindings in found.values()):
        return relax.transform.FoldConstant()(mod)
    parts = {name: _function_of(bindings) for name, bindings in found.items() if bindings}
    if not parts:
        return mod
    kernels = {name: each for name, each in mod.functions_items() if name not in functions}
    folded = relax.transform.FoldConstant()(tvm.IRModule({**kernels, **parts}))
    values = {
        variable: value
        for name, part in parts.items()
        for variable, value in zip(_results(part), _results(folded[name]), strict=True)
        if isinstance(value, GenericConst)
    }
    return rewrite_functions(mod, lambda function: _with_values(function, values)) if values else mod


def _foldable(function: relax.Function) -> list[relax.VarBinding] | None:
    """Return the bindings that FoldConstant may fold, and those that these need; None if only FoldConstant
    can tell."""
    known: dict[relax.Var, relax.VarBinding] = {}

    def is_known(expr: relax.Expr) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(is_known(field) for field in expr.fields)
        return not isinstance(expr, relax.Var) or expr in known

    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(binding, relax.MatchCast) or not isinstance(block, relax.DataflowBlock):
                return None
            if isinstance(value, Call):
                # zeros_like(x) and shape_to_tensor(shape) read only types.
                reads_types = getattr(value.op, "name", "").endswith(("_like", ".shape_to_tensor"))
                is_constant = reads_types or all(is_known(argument) for argument in value.args)
                if is_constant and not isinstance(value.ty, relax.TensorType):
                    return None
            elif isinstance(value, relax.TupleGetItem):
                is_constant = is_known(value.tuple_value)
            elif isinstance(value, GenericConst | relax.Tuple | relax.Var):
                is_constant = is_known(value)
            else:
                return None
            if is_constant:
                known[binding.var] = binding
    calls = any(isinstance(binding.value, Call) for binding in known.values())
    return list(known.values()) if calls else []


def _function_of(bindings: Sequence[relax.VarBinding]) -> relax.Function:
    """Return a function that returns the results of the calls in bindings."""
    results = relax.Tuple([binding.var for binding in bindings if isinstance(binding.value, Call)])
    output = relax.Var("results", results.ty)
    block = relax.DataflowBlock([*bindings, relax.VarBinding(output, results)])
    body = relax.SeqExpr([block], output)
    return relax.Function(relax.analysis.free_vars(body), body, output.ty)


def _results(function: relax.Function) -> Sequence[relax.Expr]:
    return tuple(function.body.blocks[-1].bindings[-1].value.fields)


def _with_values(function: relax.Function, values: Mapping[relax.Var, GenericConst]) -> relax.Function:
    """Return the function with the values of some variables in place of their expressions."""
    blocks = [
        relax.DataflowBlock(
            [relax.VarBinding(each.var, values.get(each.var, each.value)) for each in block.bindings]
        )
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def rewrite_functions(mod: tvm.IRModule, rewrite: Callable[[relax.Function], relax.Function]) -> tvm.IRModule:
    """Rewrite every relax function, then remove unused bindings."""
    functions = {
        name: rewrite(function) if isinstance(function, relax.Function) else function
        for name, function in mod.functions_items()
    }
    rewritten = tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
    cleanup = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(cleanup)(rewritten)


def constant(value: Array) -> GenericConst:
    """Return a constant of the array's own type: `relax.const` would convert int64 to int32."""
    return relax.const(value, str(value.dtype))


@relax.expr_functor.mutator
class _ConstantFolder(relax.PyExprMutator):
    """Folds calls into bindings `var = constant`, which CanonicalizeBindings removes."""

    def __init__(self, mod: tvm.IRModule, widen: bool) -> None:
        super().__init__(mod)
        self._evaluate = _EVALUATE | ({"relax.dequantize": _dequantize} if widen else {})

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        evaluate = self._evaluate.get(getattr(call.op, "name", ""))
        shape = static_shape(call)
        if evaluate is None or shape is None or math.prod(shape) * 8 > MAX_CONSTANT_BYTES:
            return call
        values = [self._value(argument) for argument in call.args]
        known = [value for value in values if value is not None]
        result = evaluate(known, call.attrs, shape) if len(known) == len(values) else None
        if result is None:
            return call
        return constant(np.ascontiguousarray(result, dtype=str(call.ty.dtype)).reshape(shape))

    def _value(self, expr: relax.Expr) -> Array | relax.ShapeExpr | None:
        """Return the value of an argument: a constant's array or a shape; None if it isn't constant."""
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        if isinstance(expr, GenericConst):
            return expr.value.numpy()
        return expr if isinstance(expr, relax.ShapeExpr) else None


def operator_name(call: Call) -> str:
    """Return the name of a call's operator without TVM's prefix, such as `nn.conv2d`; "" for other calls."""
    return str(getattr(call.op, "name", "")).removeprefix("relax.")


def bound_call(mutator: relax.PyExprMutator, expr: relax.Expr, name: str) -> Call | None:
    """Return the call of the operator `name` that a variable is bound to; None for other expressions."""
    call = mutator.lookup_binding(expr) if isinstance(expr, relax.Var) else None
    return call if isinstance(call, Call) and operator_name(call) == name else None


def static_shape(expr: relax.Expr) -> tuple[int, ...] | None:
    """Return the shape of a tensor expression; None for other types and for dynamic shapes."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(extent, int | tvm.tirx.IntImm) for extent in shape.values):
        return None
    return tuple(int(extent) for extent in shape.values)


_Evaluate = Callable[[Sequence[Array], tvm.ir.Attrs, tuple[int, ...]], Array | None]


def _ufunc(function: Callable[..., Array]) -> _Evaluate:
    def evaluate(values: Sequence[Array], _attrs: tvm.ir.Attrs, _shape: tuple[int, ...]) -> Array:
        with np.errstate(all="ignore"):
            return function(*values)

    return evaluate


def _reshape(values: Sequence[Array], _attrs: tvm.ir.Attrs, shape: tuple[int, ...]) -> Array:
    return values[0].reshape(shape)


def _permute(values: Sequence[Array], attrs: tvm.ir.Attrs, _shape: tuple[int, ...]) -> Array:
    return values[0].transpose(None if attrs.axes is None else [int(axis) for axis in attrs.axes])


def _broadcast(values: Sequence[Array], _attrs: tvm.ir.Attrs, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(values[0], shape)


def _divide(values: Sequence[Array], _attrs: tvm.ir.Attrs, _shape: tuple[int, ...]) -> Array | None:
    if values[0].dtype.kind != "f":
        return None  # TVM and numpy round integer quotients differently
    with np.errstate(all="ignore"):
        return np.divide(*values)


def _dequantize(values: Sequence[Array], attrs: tvm.ir.Attrs, _shape: tuple[int, ...]) -> Array | None:
    data = values[0]
    if data.dtype.kind not in "iu" or data.dtype.itemsize > 4 or attrs.out_dtype != "float32":
        return None
    along = [-1 if axis == int(attrs.axis) % max(data.ndim, 1) else 1 for axis in range(data.ndim)]
    scale, zero = (value if value.size == 1 else value.reshape(along) for value in values[1:])
    with np.errstate(over="ignore"):  # a mask's least float may become infinite
        return np.multiply(np.subtract(data, zero, dtype=np.int32).astype(np.float32), scale)


def _dequantize_biases(values: Sequence[Array], attrs: tvm.ir.Attrs, shape: tuple[int, ...]) -> Array | None:
    data = values[0]
    return _dequantize(values, attrs, shape) if data.dtype == np.int32 and data.ndim <= 1 else None


_EVALUATE: dict[str, _Evaluate] = {
    "relax.dequantize": _dequantize_biases,
    "relax.add": _ufunc(np.add),
    "relax.subtract": _ufunc(np.subtract),
    "relax.multiply": _ufunc(np.multiply),
    "relax.divide": _divide,
    "relax.negative": _ufunc(np.negative),
    "relax.maximum": _ufunc(np.maximum),
    "relax.minimum": _ufunc(np.minimum),
    "relax.sqrt": _ufunc(np.sqrt),
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.reshape": _reshape,
    "relax.flatten": _reshape,
    "relax.permute_dims": _permute,
    "relax.broadcast_to": _broadcast,
}
