"""Legalize relax operators so that reductions begin with the right value and propagate NaN.

Equal calls, which equal layers repeat, are legalized once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.ir import Call, GenericConst, TensorLoad
from tvm.relax import transform
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import BufferStore, FloatImm, Max, Min, PrimFunc

from compiler.constants.fold import bound_call
from compiler.precision.quantized import multiplied_type
from compiler.precision.tables import BYTES, is_look_up
from compiler.tir_nodes import find_all

# The name that TVM gives the block that pads a convolution's data.
PADDED = "pad_temp"
# The attribute of functions that take bytes from tables.
IS_TABLE = "tunefarm.is_table"
# The pattern of elementwise operators in TVM's fusion (OpPatternKind).
ELEMENTWISE = 0
_MAX_INT32 = (1 << 31) - 1

_Legalization = Callable[[relax.BlockBuilder, Call], relax.Expr]
# The first of several equal calls, legalized, and which of the call's tensors its kernel reads.
_Seen = dict[tuple[str, tvm_ffi.StructuralKey], tuple[Call, list[int]]]


def legalize(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a separate PrimFunc for each operator, before fusion."""
    steps = (_begin_at_infinity, _read_in_place, _name_blocks)
    seen: _Seen = {}
    shared = {name: functools.partial(_legalize_once, each, seen) for name, each in _of_tvm().items()}
    passes = [
        transform.LegalizeOps(shared | _LEGALIZATIONS),
        *(tirx.transform.prim_func_pass(each, opt_level=0) for each in steps),
    ]
    return tvm.transform.Sequential(passes)(_read_bytes(module))


def annotate_patterns(module: tvm.IRModule) -> tvm.IRModule:
    """Tell fusion the pattern of each function. Taking bytes from a table counts as elementwise."""

    def annotate(function: PrimFunc, _module: tvm.IRModule, _context: object) -> PrimFunc:
        return function.with_attr("op_pattern", ELEMENTWISE) if IS_TABLE in function.attrs else function

    marked = tirx.transform.prim_func_pass(annotate, opt_level=0)
    return tvm.transform.Sequential([transform.AnnotateTIROpPattern(), marked])(module)


@functools.cache
def _of_tvm() -> Mapping[str, _Legalization]:
    """Return TVM's legalizations by the operator's name."""
    found = {name: tvm.ir.Op.get(name).get_attr("FLegalize") for name in tvm.ir.Op.list_op_names()}
    return {name: each for name, each in found.items() if each is not None}


def _legalize_once(
    legalization: _Legalization, seen: _Seen, builder: relax.BlockBuilder, call: Call
) -> relax.Expr:
    """Legalize a call as an equal call that was `seen`, or add it.

        lv = add(x, y)
        lv1 = add(lv, y)        # TVM would make its PrimFunc anew, and find that it equals the first
    ->
        lv = call_tir(add, (x, y))
        lv1 = call_tir(add, (lv, y))
    """
    tensors: list[relax.Expr] = []
    described = [_describe(argument, tensors) for argument in call.args]
    if not all(isinstance(tensor.ty, relax.TensorType) for tensor in tensors):
        return legalization(builder, call)  # it may read what a variable is bound to
    key = call.op.name, tvm_ffi.StructuralKey([call.attrs, call.ty_args, call.ty, described])
    if key in seen:
        first, operands = seen[key]
        arguments = [first.args[0], relax.Tuple([tensors[k] for k in operands])]
        return Call(first.op, arguments, first.attrs, first.ty_args)
    legalized = legalization(builder, call)
    if getattr(getattr(legalized, "op", None), "name", "") == "relax.call_tir" and len(legalized.args) == 2:
        operands = [_index(operand, tensors) for operand in legalized.args[1].fields]
        if all(k < len(tensors) for k in operands):
            seen[key] = legalized, operands
    return legalized


def _describe(argument: relax.Expr, tensors: list[relax.Expr]) -> Any:
    """Return what of an argument its kernel depends on, and append the argument's tensors to `tensors`."""
    if isinstance(argument, relax.Tuple):
        return [_describe(field, tensors) for field in argument.fields]
    if not isinstance(argument, relax.Var | GenericConst):
        return argument
    position = _index(argument, tensors)
    tensors.append(argument)
    value = ""
    if isinstance(argument, GenericConst):
        # TVM reads single numbers.
        is_number = math.prod(argument.value.shape) == 1
        value = argument.value.numpy().tobytes().hex() if is_number else "constant"
    return [argument.ty, position, value]


def _index(expr: relax.Expr, tensors: list[relax.Expr]) -> int:
    """Return the first position of an expression, or the number of tensors if it isn't among them."""
    return next((k for k, tensor in enumerate(tensors) if tensor.same_as(expr)), len(tensors))


def _place_of(
    extreme: Callable[..., te.Tensor], name: str
) -> Callable[[relax.BlockBuilder, Call], relax.Expr]:
    """Return the legalization of argmax or argmin: the first position of the extreme, or of NaN.

    TVM's own compares all elements with the least value of their type, and returns -1 if none is larger.
    """

    def places(data: te.Tensor, axis: int | None, keepdims: bool) -> te.Tensor:
        rank = len(data.shape)
        if axis is None:
            flat = places(topi.reshape(data, [math.prod(int(extent) for extent in data.shape)]), 0, False)
            return topi.reshape(flat, [1] * rank if keepdims else [])
        axis %= rank
        wanted = extreme(data, axis=axis, keepdims=True)
        length = int(data.shape[axis])
        kind = "int32" if length <= _MAX_INT32 else "int64"
        step = te.reduce_axis((0, length), name="k")

        def first(*at: Any) -> Any:
            outer = list(at) if keepdims else [*at[:axis], 0, *at[axis:]]
            inner = [*outer[:axis], step.var, *outer[axis + 1 :]]
            element = data(*inner)
            found = element == wanted(*outer[:axis], 0, *outer[axis + 1 :])
            if "float" in str(data.dtype):
                found = tirx.Or(found, tirx.isnan(_wide(element)))
            place = tirx.Select(found, step.var.astype(kind), tirx.const(length, kind))
            return te.min(place, axis=step)

        shape = [1 if k == axis else extent for k, extent in enumerate(data.shape) if keepdims or k != axis]
        return topi.cast(te.compute(shape, first, name=f"{name}_place"), "int64")

    def legalized(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        keepdims = bool(call.attrs.keepdims)
        return builder.call_te(places, call.args[0], axis, keepdims, primfunc_name_hint=name)

    return legalized


def _sign(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    """Return NaN for NaN, where TVM's own returns 0, and 1 for positive unsigned integers, which TVM doesn't
    support."""

    def sign(data: te.Tensor) -> te.Tensor:
        one, zero = (tirx.const(number, data.dtype) for number in (1, 0))

        def of(*at: Any) -> Any:
            element = data(*at)
            if str(data.dtype).startswith("uint"):
                return tirx.Select(element > zero, one, zero)
            negative = tirx.Select(element < zero, -one, element)
            return tirx.Select(element > zero, one, negative)

        return te.compute(data.shape, of, name="T_sign")

    return builder.call_te(sign, call.args[0], primfunc_name_hint="sign")


def _convolution(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    """Widen bytes of the data before a convolution pads them, if it multiplies wider values.

    TVM's own converts each element where it is multiplied.
    """
    attrs, wide = call.attrs, multiplied_type(call)

    def convolve(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return _convolved(call, topi.cast(data, wide), weight)

    if wide == str(call.args[0].ty.dtype) or str(attrs.out_layout or attrs.data_layout) != str(
        attrs.data_layout
    ):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(convolve, *call.args, primfunc_name_hint=call.op.name.rpartition(".")[2])


def _convolved(call: Call, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """Return what a call computes of other data."""
    attrs = call.attrs
    return topi.nn.conv(
        data,
        weight,
        [int(step) for step in attrs.strides],
        [int(extent) for extent in attrs.padding],
        [int(step) for step in attrs.dilation],
        int(attrs.groups),
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_dtype,
    )


def _read_bytes(module: tvm.IRModule) -> tvm.IRModule:
    rewriter = _ByteReader(module)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return transform.DeadCodeElimination()(rewriter.builder_.get())


@relax.expr_functor.mutator
class _ByteReader(relax.PyExprMutator):
    """Lets convolutions of floats pad bytes, and means widen them. Fusion would make these steps kernels of
    their own."""

    def visit_call_(self, op: Call) -> relax.Expr:
        call = self.visit_expr_post_order(op)
        name = str(getattr(call.op, "name", ""))
        if name == "relax.mean":
            return self._mean(call)
        return self._padded(call) if name.startswith("relax.nn.conv") and len(call.args) == 2 else call

    def _mean(self, call: Call) -> relax.Expr:
        cast = bound_call(self, call.args[0], "astype")
        if cast is None or str(cast.args[0].ty.dtype) not in BYTES or str(call.ty.dtype) != "float32":
            return call
        attrs = call.attrs

        def mean(data: te.Tensor) -> te.Tensor:
            axes = [int(axis) for axis in attrs.axis] if attrs.axis else [*range(len(data.shape))]
            count = math.prod(int(data.shape[axis]) for axis in axes)
            summed = topi.sum(topi.cast(data, "float32"), axes, bool(attrs.keepdims))
            return topi.divide(summed, tirx.const(count, "float32"))

        return self.builder_.call_te(mean, cast.args[0], primfunc_name_hint="mean")

    def _padded(self, call: Call) -> relax.Expr:
        """The value is an argument, so that layers that differ in zeros only have equal kernels."""
        data, weight = call.args
        pad = bound_call(self, data, "nn.pad")
        if pad is None:
            return call
        types = str(data.ty.dtype), str(weight.ty.dtype)
        layouts = {str(call.attrs.data_layout), str(call.attrs.out_layout or call.attrs.data_layout)}
        if types[0] not in BYTES or types[1] != "float32" or len(layouts) > 1:
            return call
        widths = [int(extent) for extent in pad.attrs.pad_width]

        def convolve(data: te.Tensor, value: te.Tensor, weight: te.Tensor) -> te.Tensor:
            wide = topi.cast(data, "float32")
            padded = topi.nn.pad(wide, widths[::2], widths[1::2], value(0), name=PADDED)
            return _convolved(call, padded, weight)

        value = relax.const(np.array([pad.attrs.pad_value], np.float32))
        name = call.op.name.rpartition(".")[2]
        return self.builder_.call_te(convolve, pad.args[0], value, weight, primfunc_name_hint=name)


def _look_up(builder: relax.BlockBuilder, call: Call) -> relax.Expr:
    """Take bytes from a table as an elementwise operator, which the previous kernel can compute.

    taken[n, y, x, c] = table[place[n, y, x, c]]
    """
    if not is_look_up(call):
        return _of_tvm()["relax.take"](builder, call)

    def look_up(table: te.Tensor, place: te.Tensor) -> te.Tensor:
        return te.compute(place.shape, lambda *at: table(place(*at)), name="T_table")

    tensors = [_placeholder(one) for one in call.args]
    function = te.create_prim_func([*tensors, look_up(*tensors)])
    function = function.without_attr("global_symbol").with_attr({IS_TABLE: True, "tirx.noalias": True})
    return relax.op.call_tir(builder.add_func(function, "table"), relax.Tuple(call.args), call.ty)


def _placeholder(tensor: relax.Expr) -> te.Tensor:
    return te.placeholder(tensor.ty.shape.values, str(tensor.ty.dtype))


_LEGALIZATIONS = {
    "relax.take": _look_up,
    **dict.fromkeys((f"relax.nn.conv{rank}d" for rank in (1, 2, 3)), _convolution),
    "relax.argmax": _place_of(topi.max, "argmax"),
    "relax.argmin": _place_of(topi.min, "argmin"),
    "relax.sign": _sign,
}


def _wide(element: Any) -> Any:
    """Cast an element to a type for which TVM supports NaN."""
    return element.astype("float32") if str(element.ty.dtype) == "bfloat16" else element


def _begin_at_infinity(function: PrimFunc, _module: tvm.IRModule, _context: object) -> PrimFunc:
    """Let maxima and minima of floats begin with infinity, and pad with it.

    TVM begins with the largest finite number, which is wrong if all elements are infinite.

        with T.init():
            s[i] = T.float32(-3.4e38)
        s[i] = T.max(s[i], x[i, k])
    ->
        with T.init():
            s[i] = T.float32("-inf")
        s[i] = T.max(s[i], x[i, k])
    """
    limits = {
        (str(store.value.ty.dtype), type(store.value) is Max)
        for block in find_all(function.body, SBlock)
        if block.init is not None
        for store in find_all(block.body, BufferStore)
        if isinstance(store.value, Max | Min) and "float" in str(store.value.ty.dtype)
    }

    def replace(number: FloatImm) -> FloatImm:
        dtype, value = str(number.ty.dtype), float(number.value)
        # TVM's constant for the largest bfloat16 exceeds the largest bfloat16.
        is_limit = (dtype, value < 0) in limits and abs(value) >= _largest(dtype)
        return tirx.FloatImm(dtype, math.copysign(math.inf, value)) if is_limit else number

    return (
        function.with_body(tvm_ffi.structural_map(function.body, (FloatImm, replace))) if limits else function
    )


def _read_in_place(function: PrimFunc, _module: tvm.IRModule, _context: object) -> PrimFunc:
    """Remove the padding of integers by nothing. Instructions read memory, so it would stay a copy. A padding
    of floats is inlined by the search.

        pad_temp[n, y, x, c] = data[n, y, x, c]
        s[n, y, x, f] += pad_temp[n, y, x, c] * w[c, f]
    ->
        s[n, y, x, f] += data[n, y, x, c] * w[c, f]
    """
    stores = [
        store
        for block in find_all(function.body, SBlock)
        if block.name_hint == PADDED
        for store in find_all(block.body, BufferStore)
    ]
    is_copy = any(
        isinstance(store.value, TensorLoad)
        and "int" in str(store.value.ty.dtype)
        and tvm_ffi.structural_equal(store.indices, store.value.indices, map_free_vars=True)
        for store in stores
    )
    if not is_copy:
        return function
    schedule = Schedule(function)
    schedule.compute_inline(schedule.get_sblock(PADDED))
    return schedule.mod["main"].with_attr(dict(function.attrs.items()))


def _name_blocks(function: PrimFunc, _module: tvm.IRModule, _context: object) -> PrimFunc:
    """Name blocks independently of the function's parameters, whose names are the model's.

        with T.sblock("node57_1_red"): ...  ->  with T.sblock("x_red"): ...

    Workloads of several models have one hash, which ignores names, and the steps of a trace name blocks.
    """
    prefixes = [f"{parameter.name}_" for parameter in function.params]
    names = [block.name_hint for block in find_all(function.body, SBlock)]
    # The longest matching prefix, because one parameter's name may begin with another's.
    found = {name: max(filter(name.startswith, prefixes), key=len, default="") for name in names}
    if not any(found.values()):
        return function
    renamed = {name: name for name, prefix in found.items() if not prefix}
    taken = set(renamed)
    for name, prefix in found.items():
        if prefix:
            new = f"x_{name.removeprefix(prefix)}"
            while new in taken:
                new += "_"
            taken.add(new)
            renamed[name] = new

    def rename(block: SBlock) -> SBlock:
        return SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            renamed[block.name_hint],
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    return function.with_body(tvm_ffi.structural_map(function.body, (SBlock, rename)))


def _largest(dtype: str) -> float:
    return float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
