"""Compute halves (float16 and bfloat16) in the way that is fastest on the device.

A GPU's tensor cores multiply halves and add up in float32. So do the dot products of bfloat16 of some CPUs.
Other CPUs compute in float16 (`search.sketches.half_products`). Otherwise, each operand would be converted to
float32, which takes longer than to compute in float32. So such a CPU computes in float32, with weights that
were converted ahead of time. Only products of one row with large weights keep halves: their time is the time
to load the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from enum import Enum, auto

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from compiler.constants.fold import constant, rewrite_functions, static_shape
from compiler.precision.packed_weights import CACHED_BYTES
from compiler.precision.quantized import CONVOLUTIONS
from compiler.target import target_features
from search.sketches.half_products import HALF_ARITHMETIC, adds_in_blocks
from search.sketches.intrinsics import dot_product
from search.sketches.tile_products import INSTRUCTIONS, fitting_product

HALVES = frozenset({"float16", "bfloat16"})
# The fewest sums of an instruction.
MIN_LANES = 8
# By operator: its constructor and its attributes.
_CONVOLUTION = ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout", "out_layout")
_TRANSPOSED = (*_CONVOLUTION, "output_padding")
SUMS: dict[str, tuple[Callable[..., relax.Expr], tuple[str, ...]]] = {
    "relax.matmul": (relax.op.matmul, ()),
    "relax.nn.conv1d": (relax.op.nn.conv1d, _CONVOLUTION),
    "relax.nn.conv2d": (relax.op.nn.conv2d, _CONVOLUTION),
    "relax.nn.conv3d": (relax.op.nn.conv3d, _CONVOLUTION),
    "relax.nn.conv1d_transpose": (relax.op.nn.conv1d_transpose, _TRANSPOSED),
    "relax.nn.conv2d_transpose": (relax.op.nn.conv2d_transpose, _TRANSPOSED),
}
# Operators that sum or multiply elements of one tensor, and operators composed of these.
REDUCTIONS = frozenset(
    f"relax.{name}"
    for name in (
        *("sum", "mean", "prod", "variance", "std"),
        *("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
        *("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d", "nn.adaptive_avg_pool3d"),
        *("nn.softmax", "nn.log_softmax"),
        *("nn.layer_norm", "nn.rms_norm", "nn.group_norm", "nn.instance_norm"),
    )
)
# Elementwise operators that may compute in float32. Comparisons may not: they compare rounded values.
ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "where", "clip"),
        *("abs", "negative", "square", "sqrt", "rsqrt", "exp", "log", "erf", "tanh", "sigmoid", "sin", "cos"),
        *("nn.relu", "nn.leakyrelu", "nn.prelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus"),
    )
)
# Operators that move elements or choose among them.
MOVES = frozenset(
    f"relax.{name}"
    for name in (
        *("reshape", "flatten", "expand_dims", "squeeze", "permute_dims", "broadcast_to", "strided_slice"),
        *("concat", "nn.pad", "tile", "repeat", "flip", "max", "min"),
        *("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"),
    )
)
# Operators with the type of their result as an attribute.
SCANS = {"relax.cumsum": relax.op.cumsum, "relax.cumprod": relax.op.cumprod}


def reduce_in_floats(mod: tvm.IRModule) -> tvm.IRModule:
    """Let operators that sum elements of halves compute in float32, and round their result once.

        gv = sum(x)                                   # x: Tensor((1, 64), "float16")
    ->
        lv = astype(x, "float32")
        lv1 = sum(lv)
        gv = astype(lv1, "float16")
    """
    found: list[Call] = []
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(
                function, lambda expr: found.append(expr) if _reduces_halves(expr) else None
            )
    return rewrite_functions(mod, lambda function: _Reductions(mod).visit_expr(function)) if found else mod


@relax.expr_functor.mutator
class _Reductions(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        if not _reduces_halves(op):
            return call
        wide = [
            relax.op.astype(argument, "float32") if _is_half(argument) else argument for argument in call.args
        ]
        if (scan := SCANS.get(call.op.name)) is not None:
            result = scan(wide[0], call.attrs.axis, "float32", call.attrs.exclusive)
        else:
            result = Call(call.op, wide, call.attrs)
        return relax.op.astype(self.builder_.emit(result), str(op.ty.dtype))


def _reduces_halves(expr: relax.Expr) -> bool:
    name = getattr(getattr(expr, "op", None), "name", "")
    return (name in REDUCTIONS or name in SCANS) and _is_half(expr)


def _is_half(expr: relax.Expr) -> bool:
    return str(getattr(expr.ty, "dtype", "")) in HALVES


def compute_halves(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Compute halves of a CPU's model in float32 where that is faster. Products always sum in float32, or
    add blocks of bounded length in halves (`search.sketches.half_products`).

        gv = conv2d(x, w)                             # x, w: float16
        gv1 = relu(gv)
    ->
        lv = conv2d(astype(x, "float32"), w')         # w': float32
        lv1 = relu(lv)
        gv1 = astype(lv1, "float16")
    or, with dot products of this type,
        lv = conv2d(x, w, out_dtype="float32")
        lv1 = relu(lv)
        gv1 = astype(lv1, "float16")

    Values between operators that compute in float32 are not rounded to halves, unless the model casts them.
    """
    if target.kind.name != "llvm":
        return _sum_in_floats(mod)
    forms = _Forms(target_features(target))
    return rewrite_functions(mod, lambda function: _Widening(mod, function, forms).visit_expr(function))


def count_products(mod: tvm.IRModule, target: tvm.target.Target) -> tuple[int, int]:
    """Return the number of products of halves that a CPU computes in float32, and the number of all products
    of halves without arithmetic of their own.
    """
    if target.kind.name != "llvm":
        return 0, 0
    forms, found = _Forms(target_features(target)), list[_Form]()

    def visit(expr: relax.Expr) -> None:
        if getattr(getattr(expr, "op", None), "name", "") in SUMS:
            form = forms.form(expr)
            if form is _Form.FLOATS or forms.halves_of(expr):
                found.append(form)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found.count(_Form.FLOATS), len(found)


def _sum_in_floats(mod: tvm.IRModule) -> tvm.IRModule:
    """Have convolutions and matrix products of halves sum in float32, as a GPU's tensor cores do.

        gv = matmul(x, w)                             # x: Tensor((1, 64), "float16")
    ->
        lv = matmul(x, w, out_dtype="float32")
        gv = astype(lv, "float16")
    """
    return rewrite_functions(mod, lambda function: _Sums(mod).visit_expr(function))


@relax.expr_functor.mutator
class _Sums(relax.PyExprMutator):
    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = getattr(call.op, "name", "")
        types = {str(tensor.ty.dtype) for tensor in [op, *call.args]} if name in SUMS else set()
        if len(types) != 1 or not types <= HALVES:
            return call
        return relax.op.astype(self.builder_.emit(_product(call, call.args, "float32")), types.pop())


def _product(call: Call, operands: Collection[relax.Expr], out_dtype: str) -> relax.Expr:
    """Return the convolution or matrix product of other operands, with sums of the type `out_dtype`."""
    compute, attributes = SUMS[call.op.name]
    given = {key: getattr(call.attrs, key) for key in attributes}
    return compute(*operands, **given, out_dtype=out_dtype)


class _Form(Enum):
    """How a call of halves is computed: as it is, in float32, or as a product of halves with sums in
    float32.
    """

    UNCHANGED = auto()
    FLOATS = auto()
    PRODUCT = auto()


class _Forms:
    """Chooses how a CPU with these instruction sets computes calls."""

    def __init__(self, features: Collection[str]) -> None:
        self._features = features
        # Types in which the CPU computes everything.
        self._native = {"float16"} if HALF_ARITHMETIC & set(features) else set[str]()
        self._tiles = {
            one.rows: name
            for name, one in INSTRUCTIONS.items()
            if one.rows in HALVES and set(one.features) <= set(features)
        }
        dots = {dtype for dtype in HALVES if dot_product(features, MIN_LANES, dtype, "float32")}
        self._dots = dots | self._tiles.keys()

    def halves_of(self, call: Call) -> set[str]:
        """Return the types of a call's operands that are halves without arithmetic of their own."""
        tensors = [
            field
            for argument in call.args
            for field in (argument.fields if isinstance(argument, relax.Tuple) else [argument])
        ]
        return {str(getattr(tensor.ty, "dtype", "")) for tensor in tensors} & (HALVES - self._native)

    def form(self, call: Call) -> _Form:
        name, halves = getattr(call.op, "name", ""), self.halves_of(call)
        if name in SUMS and {str(one.ty.dtype) for one in (call, *call.args)} <= self._native:
            # The few terms of a depthwise convolution don't fill blocks.
            is_grouped = int(getattr(call.attrs, "groups", 1)) > 1
            return _Form.FLOATS if is_grouped and adds_in_blocks(self._features) else _Form.PRODUCT
        if len(halves) != 1:
            return _Form.UNCHANGED
        if name in SUMS:
            if len({str(one.ty.dtype) for one in call.args}) != 1:
                return _Form.UNCHANGED
            keeps = self._fits_dots(call, *halves) or _streams_weights(call)
            return _Form.PRODUCT if keeps else _Form.FLOATS
        is_widened = name == "relax.astype" and str(call.ty.dtype) == "float32"
        # Dot products read halves, so what is between them moves halves.
        is_moved = name in MOVES and not halves <= self._dots
        return _Form.FLOATS if name in ELEMENTWISE or is_widened or is_moved else _Form.UNCHANGED

    def _fits_dots(self, call: Call, dtype: str) -> bool:
        """Return whether dot products or tiles of this type compute a product; convolutions with a constant
        weight are padded to even numbers of channels.
        """
        data, other = (static_shape(argument) for argument in call.args)
        if data is None or other is None or min(len(data), len(other)) < 2:
            return False
        if call.op.name == "relax.matmul":
            rows, lanes, depth, is_padded = data[-2], other[-1], other[-2], False
        elif call.op.name in CONVOLUTIONS:
            _, data_layout, kernel_layout = CONVOLUTIONS[call.op.name]
            attrs = call.attrs
            layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout or data_layout)
            if layouts != (data_layout, kernel_layout, data_layout) or int(attrs.groups) > 1:
                return False
            # Rows are neighbouring pixels, whose windows must be neighbours, too.
            rows = int(call.ty.shape[-1]) if {int(each) for each in attrs.strides} == {1} else 0
            lanes, depth, is_padded = other[0], other[1], isinstance(call.args[1], GenericConst)
        else:
            return False
        depth += depth % 2 if is_padded else 0
        found = dot_product(self._features, lanes, dtype, "float32")
        if found is not None and depth % found.depth == 0:
            return True
        tiles = self._tiles.get(dtype)
        return tiles is not None and rows > 0 and fitting_product(rows, lanes, depth, tiles) is not None


def _streams_weights(call: Call) -> bool:
    """Return whether a product of one row takes as long as loading its constant weights from memory."""
    data, weight = static_shape(call.args[0]), call.args[1]
    if call.op.name != "relax.matmul" or data is None or not isinstance(weight, GenericConst):
        return False
    return math.prod(data[:-1]) == 1 and 4 * math.prod(static_shape(weight) or ()) > CACHED_BYTES


@relax.expr_functor.mutator
class _Widening(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, function: relax.Function, forms: _Forms) -> None:
        super().__init__(mod)
        self._forms = forms
        # The float32 results of calls, which are then rounded to halves.
        self._wide: set[relax.Var] = set()
        # Variables that something reads as halves.
        self._read = set(relax.analysis.free_vars(function.body.body))
        # The names of bindings identify the nodes of calls (compiler.importing.node_names).
        self._names: dict[relax.Expr, str] = {}
        for block in function.body.blocks:
            for binding in block.bindings:
                value = binding.value
                self._names[value] = str(binding.var.name)
                if not isinstance(value, Call) or forms.form(value) is not _Form.FLOATS:
                    self._read |= set(relax.analysis.free_vars(value))

    def visit_call_(self, op: Call) -> relax.Expr:
        form, call = self._forms.form(op), self.visit_expr_post_order(op)
        name = getattr(call.op, "name", "")
        if form is _Form.UNCHANGED:
            if name == "relax.astype" and str(op.ty.dtype) in HALVES and self._is_reduced(call.args[0]):
                self._wide.add(call.args[0])
            return call
        if form is _Form.PRODUCT:
            pads = name in CONVOLUTIONS and self._forms.halves_of(call)
            result = self._padded(call) if pads else _product(call, call.args, "float32")
        else:
            operands = [self._floats(argument) for argument in call.args]
            if name == "relax.astype":
                return operands[0]
            if name in SUMS:
                result = _product(call, operands, "float32")
            else:
                result = Call(call.op, operands, call.attrs, call.ty_args)
        if str(op.ty.dtype) not in HALVES:
            return result
        wide = self.builder_.emit(result, self._names.get(op, ""))
        self._wide.add(wide)
        return relax.op.astype(wide, str(op.ty.dtype))

    def _is_reduced(self, value: relax.Expr) -> bool:
        """Return whether a value is the float32 result of an operator that `reduce_in_floats` widened."""
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        name = getattr(getattr(bound, "op", None), "name", "")
        return (name in REDUCTIONS or name in SCANS) and str(value.ty.dtype) == "float32"

    def _floats(self, value: relax.Expr) -> relax.Expr:
        """Return a value in float32. Values that nothing reads as halves aren't rounded to them."""
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._floats(field) for field in value.fields])
        if not _is_half(value):
            return value
        if isinstance(value, GenericConst):
            return constant(value.value.numpy().astype(np.float32))
        bound = self.lookup_binding(value) if isinstance(value, relax.Var) else None
        if isinstance(bound, Call) and value not in self._read and bound.args and bound.args[0] in self._wide:
            return bound.args[0]
        return self.builder_.emit(relax.op.astype(value, "float32"))

    def _padded(self, call: Call) -> relax.Expr:
        """Return a convolution of halves with an even number of channels."""
        weight = call.args[1]
        shape = static_shape(weight)
        assert shape is not None, "checked by its form"
        missing = -shape[1] % 2
        if not missing:
            return _product(call, call.args, "float32")
        ends = [0, 0] * (len(shape) - 2)
        data = self.builder_.emit(relax.op.nn.pad(call.args[0], [0, 0, 0, missing, *ends]))
        widths = [(0, 0), (0, missing), *[(0, 0)] * (len(shape) - 2)]
        return _product(call, (data, constant(np.pad(weight.value.numpy(), widths))), "float32")
