"""Import TFLite's operators with TVM's front end, and with converters of operators that it lacks or gets
wrong."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import Call
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, get_tensor_name

from compiler.constants.fold import constant, static_shape
from compiler.importing.formats import tflite_elementwise, tflite_recurrent
from compiler.importing.formats.tflite_check import name_of
from compiler.importing.formats.tflite_tables import gelu_of_floats, halves_away, look_up
from compiler.importing.node_names import NodeNames
from compiler.importing.onnx_graph import Graph
from compiler.importing.operators import CONVERTERS as ONNX_CONVERTERS
from compiler.importing.reasons import describe_inputs, plain_reason
from compiler.importing.spec import ModelError
from compiler.importing.values import UnsupportedOperator

Array = NDArray[Any]
Convert = Callable[..., Any]


# Operators that pass stored elements on, quantized or not.
_MOVES = frozenset(
    {
        *("BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
        *("MIRROR_PAD", "NEG", "PACK", "PAD", "PADV2", "RESHAPE", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2"),
        *("SELECT", "SELECT_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V"),
        *("SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK"),
    }
)
# Operators with weights of bytes and data of floats: "dynamic range quantization".
_WITH_STORED_WEIGHTS = frozenset(
    {"BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D", "EMBEDDING_LOOKUP", "FULLY_CONNECTED", "TRANSPOSE_CONV"}
)
MAX_NAME_CHARS = 80
_RANDOM = frozenset(
    {"MULTINOMIAL", "RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "STABLEHLO_RNG_BIT_GENERATOR"}
)
_TYPES = ("FLOAT32", "FLOAT16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT32", "UINT64", "BOOL")
_INTEGERS = ("INT4", "INT8")
# TVM's front end represents complex numbers as pairs, which can't be outputs.
_COMPLEX = frozenset({"COMPLEX_ABS", "IMAG", "REAL", "RFFT2D"})


def _dtype_of(tensor: Any) -> str:
    """Return the name of a tensor's element type in a message."""
    types = vars(importlib.import_module("tflite.TensorType").TensorType)
    return next((name.lower() for name, number in types.items() if number == tensor.tensor.Type()), "unknown")


class _Retyped:
    """A tensor of a file, with another element type."""

    def __init__(self, tensor: Any, number: int) -> None:
        self._tensor = tensor
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)

    def Type(self) -> int:  # noqa: N802 (a name of FlatBuffers)
        return self._number


class _Unpacked:
    """A buffer of `count` integers of 4 bits, two in a byte, the lower bits first. It returns bytes."""

    def __init__(self, buffer: Any, count: int) -> None:
        self._buffer = buffer
        self._count = count

    def DataLength(self) -> int:  # noqa: N802 (a name of FlatBuffers)
        return self._count

    def DataAsNumpy(self) -> NDArray[np.uint8]:  # noqa: N802 (a name of FlatBuffers)
        pairs = self._buffer.DataAsNumpy().view(np.int8)
        numbers = np.stack([pairs << 4 >> 4, pairs >> 4], axis=-1).ravel()[: self._count]
        return numbers.astype(np.int8).view(np.uint8)


class Converter(OperatorConverter):
    """Converts a graph operator by operator. Each result has the shape and type that the file declares."""

    _SUPPORTED_QUANTIZED_OPS = (
        OperatorConverter._SUPPORTED_QUANTIZED_OPS
        | _MOVES
        | {*tflite_elementwise.CONVERTERS, *tflite_recurrent.CONVERTERS}
        | {"ARG_MAX", "ARG_MIN", "BATCH_MATMUL", "BITWISE_XOR", "EMBEDDING_LOOKUP", "GELU", "RIGHT_SHIFT"}
    ) - {"FLOOR_DIV"}

    def __init__(
        self,
        model: Any,
        subgraph: Any,
        exp_tab: Any,
        ctx: Any,
        conversion_state: Any = None,
        node_names: NodeNames | None = None,
    ) -> None:
        """`node_names` collects the names of operators. A loop's body needs none, because it has no names."""
        super().__init__(model, subgraph, exp_tab, ctx, conversion_state)
        self._node_names = node_names
        others = {**tflite_elementwise.CONVERTERS, **tflite_recurrent.CONVERTERS}
        own: dict[str, Convert] = {
            **{kind: functools.partial(convert, self) for kind, convert in others.items()},
            "ARG_MAX": functools.partial(self._place, relax_op=relax.op.argmax),
            "ARG_MIN": functools.partial(self._place, relax_op=relax.op.argmin),
            "BATCH_MATMUL": self._batch_matmul,
            "BATCH_TO_SPACE_ND": self._batch_to_space,
            "BITWISE_XOR": self._exclusive_or,
            "CONCATENATION": self._concatenation,
            "CONV_2D": functools.partial(self._convolution, conv_type="conv2d"),
            "CONV_3D_TRANSPOSE": self._transpose_conv,
            "CUMSUM": self._cumsum,
            "DEPTHWISE_CONV_2D": functools.partial(self._convolution, conv_type="depthwise"),
            "DEQUANTIZE": self._dequantize,
            "EMBEDDING_LOOKUP": self._embedding_lookup,
            "EXPAND_DIMS": self._reshape,
            "FULLY_CONNECTED": self._fully_connected,
            "GATHER": self._gather,
            "GATHER_ND": self._gather_nd,
            "GELU": self._gelu,
            "MEAN": self._mean,
            "MATRIX_DIAG": self._matrix_diagonal,
            "MATRIX_SET_DIAG": self._matrix_diagonal,
            "MIRROR_PAD": self._mirror_pad,
            "NON_MAX_SUPPRESSION_V4": functools.partial(self._selection, self.convert_nms_v4),
            "NON_MAX_SUPPRESSION_V5": functools.partial(self._selection, self.convert_nms_v5),
            "PAD": self._pad,
            "PADV2": self._pad,
            "POW": self._power,
            "RANGE": self._range,
            "RANK": self._rank,
            "RESHAPE": self._reshape_to,
            "RESIZE_BILINEAR": self._resize_bilinear,
            "RESIZE_NEAREST_NEIGHBOR": self._resize_nearest,
            "REVERSE_V2": self._reverse,
            "RIGHT_SHIFT": self._right_shift,
            "SCATTER_ND": self._scatter_nd,
            "SELECT": self._select,
            "SHAPE": self._shape,
            "SOFTMAX": self._softmax,
            "SPACE_TO_BATCH_ND": self._space_to_batch,
            "SPARSE_TO_DENSE": self._sparse_to_dense,
            "SPLIT_V": self._split_v,
            "SQUARED_DIFFERENCE": self._squared_difference,
            "SQUEEZE": self._reshape,
            "STRIDED_SLICE": self._strided_slice,
            "TOPK_V2": self._top_k,
            "TRANSPOSE_CONV": self._transpose_conv,
            "WHERE": self._where,
            **{
                f"UNSORTED_SEGMENT_{name}": functools.partial(self._segments, name)
                for name in ("SUM", "PROD", "MAX", "MIN")
            },
            **{
                name: functools.partial(self._reduce, relax_op=relax_op)
                for name, relax_op in (
                    ("SUM", relax.op.sum),
                    ("REDUCE_MAX", relax.op.max),
                    ("REDUCE_MIN", relax.op.min),
                    ("REDUCE_PROD", relax.op.prod),
                )
            },
        }
        self.convert_map.update(own)

    def check_unsupported_ops(self) -> None:
        """Raise ModelError for the first operator that can't be imported."""
        for op, name, error in self.checked_operators():
            if error is not None:
                raise self._refusal(name, op, error) from error

    def checked_operators(self) -> Iterator[tuple[Any, str, UnsupportedOperator | None]]:
        """Yield each operator with its name, and with the reason why it can't be imported, if it can't."""
        for position in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(position)
            try:
                name = self.get_op_code_str(op)
            except NotImplementedError:  # a custom one
                code = self.model.OperatorCodes(op.OpcodeIndex()).CustomCode() or b""
                name = f"'{code.decode(errors='replace')[:MAX_NAME_CHARS]}' of the model's own"
                yield (
                    op,
                    name,
                    UnsupportedOperator(
                        "only TFLite's built-in operators are supported: compute it outside of the model"
                    ),
                )
                continue
            try:
                self._check_kind(name, op)
                yield op, name, None
            except UnsupportedOperator as error:
                yield op, name, error

    def _check_kind(self, kind: str, op: Any) -> None:
        if kind in _RANDOM:
            raise UnsupportedOperator(
                "it draws random numbers, which a library doesn't: make the numbers an input"
            )
        if kind in _COMPLEX:
            raise UnsupportedOperator("complex numbers aren't supported: compute with pairs of numbers")
        if kind not in self.convert_map:
            raise UnsupportedOperator("it isn't among the operators that are read: leave it out")
        inputs = self.get_input_tensors(op)
        quantized = [tensor for tensor in (*inputs, *self.get_output_tensors(op)) if tensor.qnn_params]
        if quantized and kind not in self._SUPPORTED_QUANTIZED_OPS:
            raise UnsupportedOperator("it isn't supported for quantized tensors: leave it unquantized")
        is_stored = inputs and all(tensor in inputs[1:] for tensor in quantized)
        if quantized and is_stored and kind not in _WITH_STORED_WEIGHTS | tflite_recurrent.CONVERTERS.keys():
            raise UnsupportedOperator("its weights are quantized, but not its data: quantize both or none")

    def _refusal(self, kind: str, op: Any, error: Exception) -> ModelError:
        written = [
            get_tensor_name(self.subgraph, tensor.tensor_idx) for tensor in self.get_output_tensors(op)
        ]
        given = [tensor for tensor in self.get_input_tensors(op) if tensor.tensor_idx >= 0]
        told = describe_inputs([(_dtype_of(tensor), self.declared_shape(tensor)) for tensor in given])
        return ModelError(
            f"operator {kind} that computes '{''.join(written[:1])}' can't be imported: {plain_reason(error)}"
            f"{told}. Change or replace it, or convert the model to ONNX"
        )

    def convert_op_to_relax(self) -> None:
        for position in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(position)
            kind = self.get_op_code_str(op)
            outputs = self.get_output_tensors(op)
            try:
                if kind in _MOVES:
                    self._check_scales([*self.get_input_tensors(op), *outputs])
                result = self.convert_map[kind](op=op)
                if result is None:  # a constant that other operators read
                    continue
                result = self.bb.normalize(result)
                fields = [result] if len(outputs) == 1 else [result[k] for k in range(len(outputs))]
                for field, tensor in zip(fields, outputs, strict=True):
                    name = get_tensor_name(self.subgraph, tensor.tensor_idx)
                    declared = self._as_declared(self.bb.normalize(field), tensor)
                    if self._node_names is not None and isinstance(declared, Call):
                        declared = self.bb.emit(declared, self._node_names.binding(name))
                    self.exp_tab.set_expr(name, declared)
            except Exception as error:
                raise self._refusal(kind, op, error) from error

    def _check_scales(self, tensors: Sequence[Any]) -> None:
        """Refuse to pass quantized elements to a tensor with other quantization parameters."""
        quantized = [tensor for tensor in tensors if tensor.qnn_params is not None]
        for tensor in quantized[1:]:
            if not self.has_same_qnn_params(quantized[0], tensor):
                raise UnsupportedOperator("its operands and results are quantized in different ways")

    def has_same_qnn_params(self, lhs_tensor: Any, rhs_tensor: Any) -> bool:
        """Compare scales by their ratio: small ones differ by less than TVM's absolute tolerance."""
        scales, zeros = (
            [tensor.qnn_params[name].value.numpy() for tensor in (lhs_tensor, rhs_tensor)]
            for name in ("scale", "zero_point")
        )
        return bool(np.allclose(scales[0], scales[1], rtol=1e-5, atol=0)) and np.array_equal(*zeros)

    def get_tensors(self, tensors_idx_list: Sequence[int]) -> list[Any]:
        """Return tensors, with constants of int4 as int8. TVM's front end has no int4."""
        tensors: list[Any] = super().get_tensors(tensors_idx_list)
        int4, int8 = (getattr(importlib.import_module("tflite.TensorType").TensorType, k) for k in _INTEGERS)
        for tensor in tensors:
            if tensor.tensor_idx >= 0 and tensor.tensor.Type() == int4 and tensor.buffer.DataLength():
                tensor.buffer = _Unpacked(tensor.buffer, math.prod(tensor.tensor.ShapeAsNumpy().tolist()))
                tensor.tensor = _Retyped(tensor.tensor, int8)
        return tensors

    def get_tensor_type_str(self, tensor_type: int) -> str:
        kinds = vars(importlib.import_module("tflite.TensorType").TensorType)
        name = next((name for name, number in kinds.items() if number == tensor_type), "an unknown type")
        if name not in _TYPES:
            raise UnsupportedOperator(
                f"tensors of {name.lower()} aren't supported: convert the model with another type"
            )
        return name.lower()

    def get_expr(self, input_tensor_idx: int) -> Any:
        """Return the expression of a tensor, which may be a constant."""
        if self.has_expr(input_tensor_idx):
            return super().get_expr(input_tensor_idx)
        return self.get_tensor_expr(*self.get_tensors([input_tensor_idx]))

    def dequantize(self, expr: Any, tensor: Any) -> Any:
        """Return the numbers that quantized integers of 8 to 64 bits represent."""
        shape = static_shape(self.bb.normalize(expr))
        scale, zero = (tensor.qnn_params[name].value.numpy() for name in ("scale", "zero_point"))
        if str(expr.ty.dtype) in ("int8", "uint8", "int32") or shape is None:
            return super().dequantize(expr, tensor)
        if scale.ndim:
            scale = scale.reshape([-1 if k == tensor.qnn_params["axis"] else 1 for k in range(len(shape))])
        wide = relax.op.astype(expr, "float32")
        centred = relax.op.subtract(wide, relax.const(np.float32(zero), "float32")) if zero else wide
        return relax.op.multiply(centred, relax.const(scale, "float32"))

    def _as_declared(self, expr: Any, tensor: Any) -> Any:
        """Return a result with the shape and the type that its tensor has in the file."""
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        found, of = static_shape(expr), str(expr.ty.dtype)
        while getattr(getattr(expr, "op", None), "name", "") == "relax.reshape" and found is not None:
            if static_shape(expr.args[0]) != found:
                break
            expr = expr.args[0]  # a reshape to the same shape would become a kernel
        if found is None:
            raise UnsupportedOperator(
                "the data decides the shape of its result: write the model with shapes that are known"
            )
        shape, dtype = tuple(self.declared_shape(tensor)), self.get_tensor_type_str(tensor.tensor.Type())
        if math.prod(found) != math.prod(shape):
            raise UnsupportedOperator(f"it would compute the shape {found} instead of {shape}")
        if of != dtype and not ("int" in of and "int" in dtype):
            raise UnsupportedOperator(f"it would compute {of} instead of {dtype}")
        expr = expr if found == shape else relax.op.reshape(expr, shape)
        return self.bb.normalize(expr if of == dtype else relax.op.astype(expr, dtype))

    def declared_shape(self, tensor: Any) -> list[int]:
        return [int(extent) for extent in self._get_tensor_shape_tuple(tensor)]

    def get_tensor_value(self, tensor_wrapper: Any, is_sparse: bool = False) -> Any:
        """Return the value of a constant, or of an expression of constants."""
        if self._has_tensor_buffer_data(tensor_wrapper) or 0 in self.declared_shape(tensor_wrapper):
            return super().get_tensor_value(tensor_wrapper, is_sparse)
        name = get_tensor_name(self.subgraph, tensor_wrapper.tensor_idx)
        bindings: list[Any] = []
        known = self.has_expr(tensor_wrapper.tensor_idx) and self._collect(
            expr := self.get_expr(tensor_wrapper.tensor_idx), bindings, set()
        )
        if not known:
            raise UnsupportedOperator(f"its operand '{name}' must be a constant")
        result = relax.Var("value", expr.ty)
        body = relax.SeqExpr([relax.DataflowBlock([*bindings, relax.VarBinding(result, expr)])], result)
        function = relax.Function([], body, expr.ty).with_attr("global_symbol", "main")
        executable = relax.build(tvm.IRModule({"main": function}), "llvm")
        return relax.VirtualMachine(executable, tvm.cpu())["main"]().numpy()

    def _collect(self, expr: Any, bindings: list[Any], seen: set[Any]) -> bool:
        """Collect the variables that an expression reads. Return whether none of them is an input."""
        if isinstance(expr, relax.Var):
            if expr in seen:
                return True
            value = self.bb.lookup_binding(expr)
            if value is None or not self._collect(value, bindings, seen):
                return False
            seen.add(expr)
            bindings.append(relax.VarBinding(expr, value))
            return True
        parts = [*getattr(expr, "args", ()), *getattr(expr, "fields", ())]
        parts += [expr.tuple_value] if isinstance(expr, relax.TupleGetItem) else []
        return all(self._collect(part, bindings, seen) for part in parts)

    def convert_fused_activation_function(self, in_expr: Any, fused_activation_fn: int) -> Any:
        kind = self.activation_fn_type.get(fused_activation_fn, str(fused_activation_fn))
        if kind in ("TANH", "SIGN_BIT"):
            raise UnsupportedOperator(
                f"LiteRT ignores the fused activation {kind}: write it as an operator of its own"
            )
        return super().convert_fused_activation_function(in_expr, fused_activation_fn)

    def activated(self, expr: Any, kind: int) -> Any:
        """Apply the activation of a recurrent operator, for which LiteRT supports all activations."""
        return super().convert_fused_activation_function(expr, kind)

    def options(self, op: Any, name: str) -> Any:
        """Return the attributes of an operator; their defaults if it has none."""
        options = getattr(importlib.import_module(f"tflite.{name}"), name)()
        table = op.BuiltinOptions()
        if table is None or name_of("BuiltinOptions", op.BuiltinOptionsType()) != name:
            raise UnsupportedOperator(f"its attributes ({name}) are missing")
        options.Init(table.Bytes, table.Pos)
        return options

    def operands(self, op: Any) -> list[Any]:
        """Return the operands as numbers: quantized operands are dequantized."""
        tensors = self.get_input_tensors(op)
        return [self.real(tensor) for tensor in tensors if tensor.tensor_idx != -1]

    def real(self, tensor: Any) -> Any:
        """Return an operand as numbers."""
        expr = self.get_tensor_expr(tensor)
        return self.bb.normalize(self.dequantize(expr, tensor) if tensor.qnn_params else expr)

    def stored(self, op: Any, expr: Any) -> Any:
        """Return a result as the output stores it: quantized if the output is."""
        (tensor,) = self.get_output_tensors(op)
        return self.quantize(expr, tensor) if tensor.qnn_params else expr

    @contextmanager
    def _replaced(self, tensor: Any, expr: Any) -> Iterator[None]:
        """Let an operator read another expression instead of this tensor."""
        name = get_tensor_name(self.subgraph, tensor.tensor_idx)
        before = self.exp_tab.exprs.pop(name, None)
        self.exp_tab.exprs[name] = self.bb.normalize(expr)
        yield
        self.exp_tab.exprs.pop(name)
        if before is not None:
            self.exp_tab.exprs[name] = before

    def _reshape(self, op: Any) -> Any:
        (output,) = self.get_output_tensors(op)
        return relax.op.reshape(
            self.get_tensor_expr(self.get_input_tensors(op)[0]), self.declared_shape(output)
        )

    def _reshape_to(self, op: Any) -> Any:
        """Reshape to the declared shape, which derives from the operands unless the shape is an input."""
        tensors = self.get_input_tensors(op)
        if len(tensors) > 1 and tensors[1].tensor_idx != -1:
            self.get_tensor_value(tensors[1])
        return self._reshape(op)

    def _shape(self, op: Any) -> Any:
        (output,) = self.get_output_tensors(op)
        shape = np.array(self.declared_shape(self.get_input_tensors(op)[0]))
        return constant(shape.astype(self.get_tensor_type_str(output.tensor.Type())))

    def _rank(self, op: Any) -> Any:
        return constant(np.array(len(self.declared_shape(self.get_input_tensors(op)[0])), np.int32))

    def _range(self, op: Any) -> Any:
        bounds = [self.get_tensor_value(tensor).reshape(()) for tensor in self.get_input_tensors(op)]
        return constant(np.arange(*bounds, dtype=bounds[0].dtype))

    def _place(self, op: Any, relax_op: Convert) -> Any:
        data, axis = self.get_input_tensors(op)
        expr = self.get_tensor_expr(data)
        # Booleans are compared as bytes.
        expr = relax.op.astype(expr, "int8") if str(expr.ty.dtype) == "bool" else expr
        return relax_op(expr, int(self.get_tensor_value(axis).reshape(())), False)

    def _dequantize(self, op: Any) -> Any:
        (tensor,) = self.get_input_tensors(op)
        return relax.op.astype(self.real(tensor), "float32")

    def _convolution(self, op: Any, conv_type: str) -> Any:
        """Multiply by dequantized weights if the data isn't quantized."""
        data, weight = self.get_input_tensors(op)[:2]
        if data.qnn_params or not weight.qnn_params:
            return self.convert_conv(op, conv_type)
        with self._replaced(weight, self.real(weight)):
            return self.bb.normalize(self.convert_conv(op, conv_type))

    def _embedding_lookup(self, op: Any) -> Any:
        ids, table = self.get_input_tensors(op)
        return relax.op.take(self.real(table), self.get_tensor_expr(ids), axis=0, mode="clip")

    def _selection(self, convert: Convert, op: Any) -> Any:
        """Return the selected boxes, followed by zeros, and their number. TVM leaves other numbers after
        them."""
        *selected, count = self._fields(convert(op))
        extent = int(selected[0].ty.shape.values[0])
        is_valid = relax.op.less(relax.const(np.arange(extent), "int32"), relax.op.astype(count, "int32"))
        is_valid = self.bb.normalize(is_valid)
        return relax.Tuple(
            [*(relax.op.where(is_valid, one, relax.const(0, str(one.ty.dtype))) for one in selected), count]
        )

    def _fields(self, expr: Any) -> list[Any]:
        fields = self.bb.normalize(expr)
        return [self.bb.emit(field) for field in fields.fields]

    def _reverse(self, op: Any) -> Any:
        data, axes = self.get_input_tensors(op)
        expr = self.get_tensor_expr(data)
        for axis in self.get_tensor_value(axes).reshape(-1).tolist():
            expr = self.bb.normalize(relax.op.flip(expr, axis))
        return expr

    def _scatter_nd(self, op: Any) -> Any:
        """Add updates up at vectors of places in zeros. Places outside are clipped, as in `_gather`."""
        indices, updates, shape = self.get_input_tensors(op)
        extents = self.get_tensor_value(shape).reshape(-1).tolist()
        at = self.declared_shape(indices)
        return self._scattered(
            self.get_tensor_expr(indices),
            relax.op.reshape(self.get_tensor_expr(updates), [math.prod(at[:-1]), *extents[at[-1] :]]),
            [math.prod(at[:-1]), at[-1]],
            extents,
            0,
            "add",
        )

    def _segments(self, name: str, op: Any) -> Any:
        """Combine the rows of each segment. Rows of nonexistent segments are left out."""
        data, ids, number = self.get_input_tensors(op)
        count = int(self.get_tensor_value(number).reshape(()))
        rows, places = self.get_tensor_expr(data), relax.op.astype(self.get_tensor_expr(ids), "int64")
        dtype = np.dtype(str(rows.ty.dtype))
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        neutral = {"SUM": 0, "PROD": 1, "MAX": limits.min, "MIN": limits.max}[name]
        low, high = relax.const(0, "int64"), relax.const(count, "int64")
        exists = relax.op.logical_and(relax.op.greater_equal(places, low), relax.op.less(places, high))
        at = self.declared_shape(ids)
        rest = self.declared_shape(data)[len(at) :]
        shown = relax.op.reshape(exists, [*at, *[1] * len(rest)])
        kept = relax.op.where(shown, rows, constant(np.array(neutral, dtype)))
        return self._scattered(
            relax.op.where(exists, places, low),
            relax.op.reshape(kept, [math.prod(at), *rest]),
            [math.prod(at), 1],
            [count, *rest],
            neutral,
            {"SUM": "add", "PROD": "mul"}.get(name, name.lower()),
        )

    def _sparse_to_dense(self, op: Any) -> Any:
        """Write values at vectors of places in a tensor of one number."""
        indices, shape, values, default = self.get_input_tensors(op)
        extents = self.get_tensor_value(shape).reshape(-1).tolist()
        at = [1, *self.declared_shape(indices)][-2:]
        at = [at[1], 1] if len(self.declared_shape(indices)) == 1 else at
        numbers = relax.op.broadcast_to(self.get_tensor_expr(values), [at[0]])
        start = self.get_tensor_value(default).reshape(()).item()
        return self._scattered(self.get_tensor_expr(indices), numbers, at, extents, start, "update")

    def _scattered(
        self, indices: Any, updates: Any, at: Sequence[int], shape: Sequence[int], start: Any, reduction: str
    ) -> Any:
        updates = self.bb.normalize(updates)
        data = constant(np.full(shape, start).astype(str(updates.ty.dtype)))
        places = relax.op.astype(relax.op.reshape(indices, at), "int64")
        return relax.op.scatter_nd(data, self.bb.normalize(places), updates, reduction)

    def _matrix_diagonal(self, op: Any) -> Any:
        """Put a vector on the diagonal of a matrix: of the first operand, or of zeros."""
        *first, vector = self.get_input_tensors(op)
        (output,) = self.get_output_tensors(op)
        *_, rows, columns = self.declared_shape(output)
        diagonal = self.get_tensor_expr(vector)
        missing = rows - self.declared_shape(vector)[-1]
        if missing:
            widths = [0, 0] * (len(self.declared_shape(vector)) - 1) + [0, missing]
            diagonal = self.bb.normalize(relax.op.nn.pad(diagonal, widths))
        others = self.get_tensor_expr(first[0]) if first else relax.const(0, str(diagonal.ty.dtype))
        on_diagonal = relax.const(np.eye(rows, columns, dtype=bool))
        return relax.op.where(on_diagonal, relax.op.expand_dims(diagonal, -1), others)

    def _select(self, op: Any) -> Any:
        """Select rows if the condition is a vector, otherwise elements."""
        tensors = self.get_input_tensors(op)
        condition, first, second = (self.get_tensor_expr(tensor) for tensor in tensors)
        ranks = [len(self.declared_shape(tensor)) for tensor in tensors]
        if ranks[0] == 1 and ranks[1] > 1:
            condition = relax.op.reshape(condition, [-1, *[1] * (ranks[1] - 1)])
        return relax.op.where(condition, first, second)

    def _where(self, op: Any) -> Any:
        raise UnsupportedOperator(
            "the data decides how many places it finds: select elements by SELECT_V2 instead"
        )

    def _top_k(self, op: Any) -> Any:
        data, count = self.get_input_tensors(op)
        return relax.op.topk(self.get_tensor_expr(data), int(self.get_tensor_value(count).reshape(())))

    def _softmax(self, op: Any) -> Any:
        beta = self.options(op, "SoftmaxOptions").Beta()
        (data,) = self.operands(op)
        if beta != 1:
            data = relax.op.multiply(data, relax.const(beta, str(data.ty.dtype)))
        return self.stored(op, relax.op.nn.softmax(data, axis=-1))

    def _gelu(self, op: Any) -> Any:
        (data,) = self.operands(op)
        by_tanh = bool(op.BuiltinOptionsType() and self.options(op, "GeluOptions").Approximate())
        if _dtype_of(self.get_input_tensors(op)[0]) == "int16":
            found = look_up(self, op, functools.partial(gelu_of_floats, by_tanh=by_tanh), halves_away)
            if found is not None:
                return found
        return self.stored(op, relax.op.nn.gelu_tanh(data) if by_tanh else relax.op.nn.gelu(data))

    def _concatenation(self, op: Any) -> Any:
        if self.options(op, "ConcatenationOptions").FusedActivationFunction():
            raise UnsupportedOperator(
                "LiteRT ignores its fused activation: write it as an operator of its own"
            )
        return self.convert_concatenation(op)

    def _axes(self, op: Any, rank: int) -> list[int]:
        axes = self.get_tensor_value(self.get_input_tensors(op)[1]).reshape(-1).tolist()
        if not all(-rank <= axis < rank for axis in axes):
            raise UnsupportedOperator(f"its axes {axes} don't fit a tensor with {rank} axes")
        return sorted({axis % rank for axis in axes})

    def _keeps_axes(self, op: Any) -> bool:
        return bool(self.options(op, "ReducerOptions").KeepDims()) if op.BuiltinOptionsType() else False

    def _reduce(self, op: Any, relax_op: Convert) -> Any:
        data = self.real(self.get_input_tensors(op)[0])
        axes = self._axes(op, data.ty.ndim)
        return self.stored(op, relax_op(data, axes, self._keeps_axes(op)) if axes else data)

    def _mean(self, op: Any) -> Any:
        """Average. The mean of integers is rounded toward zero."""
        data = self.real(self.get_input_tensors(op)[0])
        axes = self._axes(op, data.ty.ndim)
        if "float" in str(data.ty.dtype):
            return self.stored(op, relax.op.mean(data, axes, self._keeps_axes(op)) if axes else data)
        count = math.prod(int(data.ty.shape.values[axis]) for axis in axes)
        if not axes or count == 0:
            raise UnsupportedOperator("the mean of no integers has no value")
        total = relax.op.sum(relax.op.astype(data, "int64"), axes, self._keeps_axes(op))
        return relax.op.divide(total, relax.const(count, "int64"))

    def _squared_difference(self, op: Any) -> Any:
        a, b = self.operands(op)
        difference = self.bb.emit(relax.op.subtract(a, b))
        return self.stored(op, relax.op.multiply(difference, difference))

    def _power(self, op: Any) -> Any:
        a, b = self.operands(op)
        if "int" in str(a.ty.dtype):
            raise UnsupportedOperator("powers of integers aren't supported: convert the operands to floats")
        return self.stored(op, relax.op.power(a, b))

    def _right_shift(self, op: Any) -> Any:
        """Shift stored integers by at most all bits but one, as LiteRT does."""
        data, by = self._stored_operands(op)
        dtype = str(data.ty.dtype)
        bound = relax.const(np.iinfo(dtype).bits - 1, dtype)
        return relax.op.right_shift(data, relax.op.minimum(by, bound))

    def _exclusive_or(self, op: Any) -> Any:
        return relax.op.bitwise_xor(*self._stored_operands(op))

    def _stored_operands(self, op: Any) -> list[Any]:
        """Return the operands as they are stored. LiteRT ignores how they are quantized."""
        return [self.get_tensor_expr(tensor) for tensor in self.get_input_tensors(op)]

    def _fully_connected(self, op: Any) -> Any:
        """Multiply rows whose length is the weight's number of columns. Unless `keep_num_dims` is set, all
        other axes become one axis."""
        data, weight = self.get_input_tensors(op)[:2]
        depth = self.declared_shape(weight)[-1]
        expr = self.get_tensor_expr(data)
        keeps_axes = self.options(op, "FullyConnectedOptions").KeepNumDims()
        if not keeps_axes and len(self.declared_shape(data)) != 2:
            expr = relax.op.reshape(expr, [-1, depth])
        # If the data isn't quantized, weights are dequantized.
        numbers = self.get_tensor_expr(weight) if data.qnn_params else self.real(weight)
        with self._replaced(data, expr), self._replaced(weight, numbers):
            return self.bb.normalize(self.convert_fully_connected(op))

    def _batch_matmul(self, op: Any) -> Any:
        options = self.options(op, "BatchMatMulOptions")
        factors = []
        for expr, is_adjoint in zip(self.operands(op), (options.AdjX(), options.AdjY()), strict=True):
            rank = expr.ty.ndim
            order = [*range(rank - 2), rank - 1, rank - 2]
            factors.append(relax.op.permute_dims(expr, order) if is_adjoint else expr)
        return self.stored(op, relax.op.matmul(*factors))

    def _gather(self, op: Any) -> Any:
        """Take slices along an axis. Indices out of bounds are clipped; LiteRT refuses them at run time.

        With batches, each batch has its own indices:
            data: (batches, before, n, after), places: (batches, k) -> (batches, before, k, after)
        """
        tensors = self.get_input_tensors(op)
        data, places = (self.get_tensor_expr(tensor) for tensor in tensors)
        options = self.options(op, "GatherOptions")
        shape, at = (self.declared_shape(tensor) for tensor in tensors)
        axis, count = options.Axis() % max(len(shape), 1), options.BatchDims() % max(len(at), 1)
        if count == 0:
            return relax.op.take(data, places, axis=axis, mode="clip")
        batches, before = math.prod(shape[:count]), math.prod(shape[count:axis])
        n, after = shape[axis], math.prod(shape[axis + 1 :])
        data = relax.op.permute_dims(relax.op.reshape(data, [batches, before, n, after]), [0, 2, 1, 3])
        rows = self._clipped(relax.op.reshape(places, [batches, -1]), n)
        start = relax.const(np.arange(batches).reshape(-1, 1) * n, "int64")
        flat = relax.op.reshape(data, [batches * n, before, after])
        taken = relax.op.take(flat, relax.op.add(rows, start), axis=0, mode="clip")
        ordered = relax.op.permute_dims(self.bb.normalize(taken), [0, 2, 1, 3])
        (output,) = self.get_output_tensors(op)
        return relax.op.reshape(ordered, self.declared_shape(output))

    def _clipped(self, places: Any, extent: int) -> Any:
        low, high = relax.const(0, "int64"), relax.const(extent - 1, "int64")
        wide = relax.op.astype(places, "int64")
        return relax.op.minimum(relax.op.maximum(wide, low), high)

    def _gather_nd(self, op: Any) -> Any:
        """Take parts whose places along the first axes are vectors, the last axis of the second operand."""
        tensors = self.get_input_tensors(op)
        data, places = (self.get_tensor_expr(tensor) for tensor in tensors)
        shape, at = (self.declared_shape(tensor) for tensor in tensors)
        count = at[-1]
        total: Any = relax.const(np.zeros(at[:-1]), "int64")
        stride = 1
        for axis in reversed(range(count)):
            along = relax.op.take(places, relax.const(axis, "int64"), axis=len(at) - 1)
            steps = relax.op.multiply(self._clipped(along, shape[axis]), relax.const(stride, "int64"))
            total = self.bb.normalize(relax.op.add(total, steps))
            stride *= shape[axis]
        flat = relax.op.reshape(data, [stride, *shape[count:]])
        return relax.op.take(flat, total, axis=0, mode="clip")

    def _split_v(self, op: Any) -> Any:
        data, sizes, axis = self.get_input_tensors(op)
        at = int(self.get_tensor_value(axis).reshape(()))
        shape = self.declared_shape(data)
        extents = [int(size) for size in self.get_tensor_value(sizes)]
        if -1 in extents:
            extents[extents.index(-1)] = shape[at] - sum(extents) - 1
        if min(extents) < 0 or sum(extents) != shape[at]:
            raise UnsupportedOperator(f"the parts {extents} don't add up to the extent {shape[at]}")
        expr, ends = self.get_tensor_expr(data), np.cumsum(extents).tolist()
        parts = [
            relax.op.strided_slice(expr, [at % len(shape)], [end - extent], [end])
            for end, extent in zip(ends, extents, strict=True)
        ]
        return parts[0] if len(parts) == 1 else relax.Tuple(parts)

    def _strided_slice(self, op: Any) -> Any:
        if self.options(op, "StridedSliceOptions").Offset():
            raise UnsupportedOperator(
                "its attribute offset isn't supported: give the ends of the slice as places"
            )
        return self.convert_strided_slice(op)

    def _cumsum(self, op: Any) -> Any:
        data, axis = self.get_input_tensors(op)
        options = self.options(op, "CumsumOptions")
        expr, rank = self.get_tensor_expr(data), len(self.declared_shape(data))
        at = int(self.get_tensor_value(axis).reshape(())) % rank
        expr = relax.op.flip(expr, at) if options.Reverse() else expr
        dtype = self.get_tensor_type_str(data.tensor.Type())
        total = relax.op.cumsum(self.bb.normalize(expr), at, dtype, bool(options.Exclusive()))
        return relax.op.flip(total, at) if options.Reverse() else total

    def _pad(self, op: Any) -> Any:
        """Pad with zeros, also where the zero point isn't 0."""
        data, widths, *filling = self.get_input_tensors(op)
        number: Any = int(data.qnn_params["zero_point"].value.numpy()) if data.qnn_params else 0
        if filling:
            number = self.get_tensor_value(filling[0]).reshape(()).item()
        if isinstance(number, int) and int(float(number)) != number:
            raise UnsupportedOperator(
                f"it can't pad with {number}, which no float64 is: pad with another one"
            )
        flat = [int(width) for width in self.get_tensor_value(widths).reshape(-1)]
        return relax.op.nn.pad(self.get_tensor_expr(data), flat, pad_value=float(number))

    def _mirror_pad(self, op: Any) -> Any:
        data, widths = self.get_input_tensors(op)
        mode: Literal["symmetric", "reflect"] = (
            "symmetric" if self.options(op, "MirrorPadOptions").Mode() == 1 else "reflect"
        )
        shape = self.declared_shape(data)
        places = [
            np.pad(np.arange(extent), [low_high], mode=mode)
            for extent, low_high in zip(shape, self.get_tensor_value(widths).tolist(), strict=True)
        ]
        return self._picked(self.get_tensor_expr(data), dict(enumerate(places)))

    def _picked(self, expr: Any, places: dict[int, Array]) -> Any:
        """Return the elements at these places along some axes."""
        for axis, along in places.items():
            extent = int(self.bb.normalize(expr).ty.shape.values[axis])
            if not np.array_equal(along, np.arange(extent)):
                expr = relax.op.take(expr, relax.const(along, "int64"), axis=axis, mode="clip")
                expr = self.bb.normalize(expr)
        return expr

    def _resize_nearest(self, op: Any) -> Any:
        """Pick the nearest elements. With aligned corners, halves are rounded away from zero."""
        if not self.options(op, "ResizeNearestNeighborOptions").AlignCorners():
            return self.convert_resize_nearest_neighbor(op)
        tensor = self.get_input_tensors(op)[0]
        (output,) = self.get_output_tensors(op)
        half = np.float32(self.options(op, "ResizeNearestNeighborOptions").HalfPixelCenters() / 2)
        places = {}
        for axis in (1, 2):
            extent, wanted = (self.declared_shape(each)[axis] for each in (tensor, output))
            scale = np.float32((extent - 1) / (wanted - 1) if wanted > 1 else extent / wanted)
            exact = (np.arange(wanted, dtype=np.float32) + half) * scale
            places[axis] = np.clip(np.floor(exact + np.float32(0.5)), 0, extent - 1)
        return self._picked(self.get_tensor_expr(tensor), places)

    def _resize_bilinear(self, op: Any) -> Any:
        options = self.options(op, "ResizeBilinearOptions")
        (output,) = self.get_output_tensors(op)
        if options.AlignCorners() and 1 in self.declared_shape(output)[1:3]:
            raise UnsupportedOperator(
                "corners of one row or column can't be aligned: leave align_corners out"
            )
        return self.convert_resize_bilinear(op)

    def _blocks(self, op: Any) -> tuple[Any, list[int], list[int], list[list[int]]]:
        data, sizes, edges = self.get_input_tensors(op)
        return (
            self.get_tensor_expr(data),
            self.declared_shape(data),
            self.get_tensor_value(sizes).tolist(),
            self.get_tensor_value(edges).tolist(),
        )

    def _space_to_batch(self, op: Any) -> Any:
        """(n, h * b, c) -> (n, h, b, c) -> (b, n, h, c) -> (b * n, h, c)"""
        expr, shape, sizes, edges = self._blocks(op)
        count = len(sizes)
        data = self.get_input_tensors(op)[0]
        filling = int(data.qnn_params["zero_point"].value.numpy()) if data.qnn_params else 0
        rest = [[0, 0]] * (len(shape) - count - 1)
        widths = [width for edge in [[0, 0], *edges, *rest] for width in edge]
        expr = relax.op.nn.pad(expr, widths, pad_value=float(filling))
        wide = [extent + sum(edge) for extent, edge in zip(shape[1:], edges, strict=False)]
        split = [part for extent, size in zip(wide, sizes, strict=True) for part in (extent // size, size)]
        after = shape[count + 1 :]
        expr = relax.op.reshape(expr, [shape[0], *split, *after])
        inner, outer = [2 * k + 2 for k in range(count)], [2 * k + 1 for k in range(count)]
        order = [*inner, 0, *outer, *range(2 * count + 1, 2 * count + 1 + len(after))]
        moved = relax.op.permute_dims(self.bb.normalize(expr), order)
        return relax.op.reshape(moved, [shape[0] * math.prod(sizes), *split[::2], *after])

    def _batch_to_space(self, op: Any) -> Any:
        """(b * n, h, c) -> (b, n, h, c) -> (n, h, b, c) -> (n, h * b, c), with the edges cut off"""
        expr, shape, sizes, edges = self._blocks(op)
        count, batches = len(sizes), shape[0] // math.prod(sizes)
        middle, after = shape[1 : count + 1], shape[count + 1 :]
        expr = relax.op.reshape(expr, [*sizes, batches, *middle, *after])
        pairs = [axis for k in range(count) for axis in (count + 1 + k, k)]
        order = [count, *pairs, *range(2 * count + 1, 2 * count + 1 + len(after))]
        moved = relax.op.permute_dims(self.bb.normalize(expr), order)
        wide = [extent * size for extent, size in zip(middle, sizes, strict=True)]
        moved = relax.op.reshape(moved, [batches, *wide, *after])
        axes = [*range(1, count + 1)]
        begins, ends = [low for low, _ in edges], [n - high for n, (_, high) in zip(wide, edges, strict=True)]
        return relax.op.strided_slice(self.bb.normalize(moved), axes, begins, ends)

    def _transpose_conv(self, op: Any) -> Any:
        """Import a transposed convolution channels-first. Data is (n, h, w, c). Weights are (o, h, w, c), or
        (d, h, w, o, c) for three axes."""
        tensors = self.get_input_tensors(op)
        weight, data = self.real(tensors[1]), self.real(tensors[2])
        (output,) = self.get_output_tensors(op)
        shape, kernel, wanted = (self.declared_shape(each) for each in (tensors[2], tensors[1], output))
        count = len(shape) - 2
        options = self.options(op, "TransposeConvOptions" if count == 2 else "Conv3DOptions")
        strides = [options.StrideH(), options.StrideW()]
        order = [3, 0, 1, 2]
        if count == 3:
            strides, order = [options.StrideD(), *strides], [4, 3, 0, 1, 2]
            kernel = [kernel[3], *kernel[:3], kernel[4]]
            if [options.DilationDFactor(), options.DilationHFactor(), options.DilationWFactor()] != [1, 1, 1]:
                raise UnsupportedOperator("LiteRT ignores its dilation: leave it out")
        lows, highs, more = [], [], []
        for axis, stride in enumerate(strides, 1):
            whole = (shape[axis] - 1) * stride + kernel[axis]
            cut = max(whole - wanted[axis], 0)
            if options.Padding() == 1 and cut:
                raise UnsupportedOperator(f"its output is shorter than {whole}, though its padding is VALID")
            lows.append(cut // 2)
            highs.append(cut - cut // 2)
            more.append(max(wanted[axis] - whole, 0))
        graph = Graph(ONNX_CONVERTERS)
        graph.builder = self.bb
        result = graph.op(
            "ConvTranspose",
            graph.emit(relax.op.permute_dims(data, [0, count + 1, *range(1, count + 1)])),
            graph.emit(relax.op.permute_dims(weight, order)),
            strides=strides,
            pads=[*lows, *highs],
        ).expr
        result = relax.op.permute_dims(result, [0, *range(2, count + 2), 1])
        if any(more):
            widths = [0, 0, *(width for extra in more for width in (0, extra)), 0, 0]
            result = relax.op.nn.pad(self.bb.normalize(result), widths)
        if len(tensors) == 4 and tensors[3].tensor_idx != -1:
            result = relax.op.add(result, self.real(tensors[3]))
        result = self.convert_fused_activation_function(result, options.FusedActivationFunction())
        return self.stored(op, self.bb.normalize(result))
