"""Converters of TFLite's operators that TVM's front end lacks or gets wrong."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, get_tensor_name

from compiler.importing.spec import ModelError, first_line
from compiler.importing.values import UnsupportedOperator

Array = NDArray[Any]
Convert = Callable[..., Any]


# Operators that hand elements on as they are stored, quantized or not.
_MOVES = frozenset(
    {
        *("BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND"),
        *(
            "MIRROR_PAD",
            "PACK",
            "PAD",
            "RESIZE_NEAREST_NEIGHBOR",
            "REVERSE_V2",
            "SELECT",
            "SELECT_V2",
            "SLICE",
        ),
        *("SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE"),
        *("TRANSPOSE", "UNPACK"),
    }
)


class Converter(OperatorConverter):
    """Converts a graph operator by operator. Each result has the shape and type that the file declares."""

    _SUPPORTED_QUANTIZED_OPS = (
        OperatorConverter._SUPPORTED_QUANTIZED_OPS | _MOVES | {"ARG_MAX", "ARG_MIN", "BATCH_MATMUL"}
    )

    def __init__(
        self, model: Any, subgraph: Any, exp_tab: Any, ctx: Any, conversion_state: Any = None
    ) -> None:
        super().__init__(model, subgraph, exp_tab, ctx, conversion_state)
        own: dict[str, Convert] = {
            "BATCH_MATMUL": self._batch_matmul,
            "BATCH_TO_SPACE_ND": self._batch_to_space,
            "CONCATENATION": self._concatenation,
            "CUMSUM": self._cumsum,
            "EXPAND_DIMS": self._reshape,
            "FULLY_CONNECTED": self._fully_connected,
            "GATHER": self._gather,
            "GATHER_ND": self._gather_nd,
            "GELU": self._gelu,
            "MEAN": self._mean,
            "MIRROR_PAD": self._mirror_pad,
            "PAD": self._pad,
            "POW": self._power,
            "RESIZE_BILINEAR": self._resize_bilinear,
            "RESIZE_NEAREST_NEIGHBOR": self._resize_nearest,
            "RIGHT_SHIFT": self._right_shift,
            "SOFTMAX": self._softmax,
            "SPACE_TO_BATCH_ND": self._space_to_batch,
            "SPLIT_V": self._split_v,
            "SQUARED_DIFFERENCE": self._squared_difference,
            "SQUEEZE": self._reshape,
            "STRIDED_SLICE": self._strided_slice,
            "TRANSPOSE_CONV": self._transpose_conv,
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

    def convert_op_to_relax(self) -> None:
        for position in range(self.subgraph.OperatorsLength()):
            op = self.subgraph.Operators(position)
            kind = self.get_op_code_str(op)
            outputs = self.get_output_tensors(op)
            try:
                if kind in _MOVES:
                    self._check_scales([*self.get_input_tensors(op), *outputs])
                result = self.convert_map[kind](op=op)
                if result is None:  # a constant that others read
                    continue
                result = self.bb.normalize(result)
                fields = [result] if len(outputs) == 1 else [result[k] for k in range(len(outputs))]
                for field, tensor in zip(fields, outputs, strict=True):
                    name = get_tensor_name(self.subgraph, tensor.tensor_idx)
                    self.exp_tab.set_expr(name, self._as_declared(self.bb.normalize(field), tensor))
            except Exception as error:
                written = [get_tensor_name(self.subgraph, tensor.tensor_idx) for tensor in outputs[:1]]
                raise ModelError(
                    f"operator {kind} that computes '{''.join(written)}' can't be imported: "
                    f"{first_line(error) or type(error).__name__}"
                ) from error

    def _check_scales(self, tensors: Sequence[Any]) -> None:
        """Refuse to hand quantized elements on to a tensor where they would stand for other numbers."""
        quantized = [tensor for tensor in tensors if tensor.qnn_params is not None]
        for tensor in quantized[1:]:
            if not self.has_same_qnn_params(quantized[0], tensor):
                raise UnsupportedOperator("its operands and results are quantized in different ways")

    def _as_declared(self, expr: Any, tensor: Any) -> Any:
        """Return a result with the shape and the type that its tensor has in the file."""
        if not isinstance(expr.ty, relax.TensorType) or expr.ty.shape is None:
            return expr
        if self._is_tflite_complex64_type(tensor.tensor.Type()):
            return expr
        shape, dtype = self._declared_shape(tensor), self.get_tensor_type_str(tensor.tensor.Type())
        found, of = [int(extent) for extent in expr.ty.shape.values], str(expr.ty.dtype)
        if math.prod(found) != math.prod(shape):
            raise UnsupportedOperator(f"it would compute the shape {tuple(found)} instead of {tuple(shape)}")
        if of != dtype and not ("int" in of and "int" in dtype):
            raise UnsupportedOperator(f"it would compute {of} instead of {dtype}")
        expr = expr if found == shape else relax.op.reshape(expr, shape)
        return self.bb.normalize(expr if of == dtype else relax.op.astype(expr, dtype))

    def _declared_shape(self, tensor: Any) -> list[int]:
        return [int(extent) for extent in self._get_tensor_shape_tuple(tensor)]

    def get_tensor_value(self, tensor_wrapper: Any, is_sparse: bool = False) -> Any:
        if not self._has_tensor_buffer_data(tensor_wrapper) and 0 not in (
            self._declared_shape(tensor_wrapper)
        ):
            name = get_tensor_name(self.subgraph, tensor_wrapper.tensor_idx)
            raise UnsupportedOperator(f"its operand '{name}' must be a constant")
        return super().get_tensor_value(tensor_wrapper, is_sparse)

    def convert_fused_activation_function(self, in_expr: Any, fused_activation_fn: int) -> Any:
        kind = self.activation_fn_type.get(fused_activation_fn, str(fused_activation_fn))
        if kind in ("TANH", "SIGN_BIT"):
            raise UnsupportedOperator(
                f"LiteRT ignores the fused activation {kind}: write it as an operator of its own"
            )
        return super().convert_fused_activation_function(in_expr, fused_activation_fn)

    def _options(self, op: Any, name: str) -> Any:
        """Return the attributes of an operator; their defaults if it has none."""
        options = getattr(importlib.import_module(f"tflite.{name}"), name)()
        table = op.BuiltinOptions()
        if table is None:
            raise UnsupportedOperator(f"its attributes ({name}) are missing")
        options.Init(table.Bytes, table.Pos)
        return options

    def _operands(self, op: Any) -> list[Any]:
        """Return the operands as numbers: those that are quantized are dequantized."""
        tensors = self.get_input_tensors(op)
        return [self._real(tensor) for tensor in tensors if tensor.tensor_idx != -1]

    def _real(self, tensor: Any) -> Any:
        expr = self.get_tensor_expr(tensor)
        return self.bb.normalize(self.dequantize(expr, tensor) if tensor.qnn_params else expr)

    def _stored(self, op: Any, expr: Any) -> Any:
        """Return a result as the output stores it: quantized, if that is."""
        (tensor,) = self.get_output_tensors(op)
        return self.quantize(expr, tensor) if tensor.qnn_params else expr

    @contextmanager
    def _replaced(self, tensor: Any, expr: Any) -> Iterator[None]:
        """Have an operator read another expression instead of this tensor."""
        name = get_tensor_name(self.subgraph, tensor.tensor_idx)
        before = self.exp_tab.exprs[name]
        self.exp_tab.exprs[name] = self.bb.normalize(expr)
        yield
        self.exp_tab.exprs[name] = before

    def _reshape(self, op: Any) -> Any:
        (output,) = self.get_output_tensors(op)
        return relax.op.reshape(
            self.get_tensor_expr(self.get_input_tensors(op)[0]), self._declared_shape(output)
        )

    def _softmax(self, op: Any) -> Any:
        beta = self._options(op, "SoftmaxOptions").Beta()
        (data,) = self._operands(op)
        if beta != 1:
            data = relax.op.multiply(data, relax.const(beta, str(data.ty.dtype)))
        return self._stored(op, relax.op.nn.softmax(data, axis=-1))

    def _gelu(self, op: Any) -> Any:
        (data,) = self._operands(op)
        by_tanh = op.BuiltinOptionsType() and self._options(op, "GeluOptions").Approximate()
        return relax.op.nn.gelu_tanh(data) if by_tanh else relax.op.nn.gelu(data)

    def _concatenation(self, op: Any) -> Any:
        if self._options(op, "ConcatenationOptions").FusedActivationFunction():
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
        return bool(self._options(op, "ReducerOptions").KeepDims()) if op.BuiltinOptionsType() else False

    def _reduce(self, op: Any, relax_op: Convert) -> Any:
        data = self._real(self.get_input_tensors(op)[0])
        axes = self._axes(op, data.ty.ndim)
        return self._stored(op, relax_op(data, axes, self._keeps_axes(op)) if axes else data)

    def _mean(self, op: Any) -> Any:
        """Average. The mean of integers is rounded toward zero."""
        data = self._real(self.get_input_tensors(op)[0])
        axes = self._axes(op, data.ty.ndim)
        if "float" in str(data.ty.dtype):
            return self._stored(op, relax.op.mean(data, axes, self._keeps_axes(op)) if axes else data)
        count = math.prod(int(data.ty.shape.values[axis]) for axis in axes)
        if not axes or count == 0:
            raise UnsupportedOperator("the mean of no integers has no value")
        total = relax.op.sum(relax.op.astype(data, "int64"), axes, self._keeps_axes(op))
        return relax.op.divide(total, relax.const(count, "int64"))

    def _squared_difference(self, op: Any) -> Any:
        a, b = self._operands(op)
        difference = self.bb.emit(relax.op.subtract(a, b))
        return self._stored(op, relax.op.multiply(difference, difference))

    def _power(self, op: Any) -> Any:
        a, b = self._operands(op)
        if "int" in str(a.ty.dtype):
            raise UnsupportedOperator("powers of integers aren't supported: convert the operands to floats")
        return self._stored(op, relax.op.power(a, b))

    def _right_shift(self, op: Any) -> Any:
        """Shift by at most all bits but one, as LiteRT does."""
        data, by = self._operands(op)
        dtype = str(data.ty.dtype)
        bound = relax.const(np.iinfo(dtype).bits - 1, dtype)
        return relax.op.right_shift(data, relax.op.minimum(by, bound))

    def _fully_connected(self, op: Any) -> Any:
        """Multiply rows of as many elements as the weight has columns. The axes before are one axis, unless
        `keep_num_dims` is set."""
        data, weight = self.get_input_tensors(op)[:2]
        depth = self._declared_shape(weight)[-1]
        rank = len(self._declared_shape(data))
        if self._options(op, "FullyConnectedOptions").KeepNumDims() or rank == 2:
            return self.convert_fully_connected(op)
        with self._replaced(data, relax.op.reshape(self.get_tensor_expr(data), [-1, depth])):
            return self.bb.normalize(self.convert_fully_connected(op))

    def _batch_matmul(self, op: Any) -> Any:
        options = self._options(op, "BatchMatMulOptions")
        factors = []
        for expr, is_adjoint in zip(self._operands(op), (options.AdjX(), options.AdjY()), strict=True):
            rank = expr.ty.ndim
            order = [*range(rank - 2), rank - 1, rank - 2]
            factors.append(relax.op.permute_dims(expr, order) if is_adjoint else expr)
        return self._stored(op, relax.op.matmul(*factors))

    def _gather(self, op: Any) -> Any:
        """Take parts along an axis. Places outside are clipped: LiteRT refuses them while it runs.

        With batches, each takes parts of its own:
            data: (batches, before, n, after), places: (batches, k) -> (batches, before, k, after)
        """
        tensors = self.get_input_tensors(op)
        data, places = (self.get_tensor_expr(tensor) for tensor in tensors)
        options = self._options(op, "GatherOptions")
        shape, at = (self._declared_shape(tensor) for tensor in tensors)
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
        return relax.op.reshape(ordered, self._declared_shape(output))

    def _clipped(self, places: Any, extent: int) -> Any:
        low, high = relax.const(0, "int64"), relax.const(extent - 1, "int64")
        wide = relax.op.astype(places, "int64")
        return relax.op.minimum(relax.op.maximum(wide, low), high)

    def _gather_nd(self, op: Any) -> Any:
        """Take parts whose places along the first axes are vectors, the last axis of the second operand."""
        tensors = self.get_input_tensors(op)
        data, places = (self.get_tensor_expr(tensor) for tensor in tensors)
        shape, at = (self._declared_shape(tensor) for tensor in tensors)
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
        shape = self._declared_shape(data)
        extents = [int(size) for size in self.get_tensor_value(sizes)]
        if -1 in extents:
            extents[extents.index(-1)] = shape[at] - sum(extents) - 1
        if min(extents) < 0 or sum(extents) != shape[at]:
            raise UnsupportedOperator(f"the parts {extents} don't add up to the extent {shape[at]}")
        ends = np.cumsum(extents)[:-1].tolist()
        return relax.op.split(self.get_tensor_expr(data), ends, at % len(shape))

    def _strided_slice(self, op: Any) -> Any:
        if self._options(op, "StridedSliceOptions").Offset():
            raise UnsupportedOperator(
                "its attribute offset isn't supported: give the ends of the slice as places"
            )
        return self.convert_strided_slice(op)

    def _cumsum(self, op: Any) -> Any:
        data, axis = self.get_input_tensors(op)
        options = self._options(op, "CumsumOptions")
        expr, rank = self.get_tensor_expr(data), len(self._declared_shape(data))
        at = int(self.get_tensor_value(axis).reshape(())) % rank
        expr = relax.op.flip(expr, at) if options.Reverse() else expr
        dtype = self.get_tensor_type_str(data.tensor.Type())
        total = relax.op.cumsum(self.bb.normalize(expr), at, dtype, bool(options.Exclusive()))
        return relax.op.flip(total, at) if options.Reverse() else total

    def _pad(self, op: Any) -> Any:
        """Pad with zeros, also where zero is stored as another number."""
        data, widths = self.get_input_tensors(op)
        zero = int(data.qnn_params["zero_point"].value.numpy()) if data.qnn_params else 0
        flat = [int(width) for width in self.get_tensor_value(widths).reshape(-1)]
        return relax.op.nn.pad(self.get_tensor_expr(data), flat, pad_value=float(zero))

    def _mirror_pad(self, op: Any) -> Any:
        data, widths = self.get_input_tensors(op)
        mode: Literal["symmetric", "reflect"] = (
            "symmetric" if self._options(op, "MirrorPadOptions").Mode() == 1 else "reflect"
        )
        shape = self._declared_shape(data)
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
        if not self._options(op, "ResizeNearestNeighborOptions").AlignCorners():
            return self.convert_resize_nearest_neighbor(op)
        tensor = self.get_input_tensors(op)[0]
        (output,) = self.get_output_tensors(op)
        half = np.float32(self._options(op, "ResizeNearestNeighborOptions").HalfPixelCenters() / 2)
        places = {}
        for axis in (1, 2):
            extent, wanted = (self._declared_shape(each)[axis] for each in (tensor, output))
            scale = np.float32((extent - 1) / (wanted - 1) if wanted > 1 else extent / wanted)
            exact = (np.arange(wanted, dtype=np.float32) + half) * scale
            places[axis] = np.clip(np.floor(exact + np.float32(0.5)), 0, extent - 1)
        return self._picked(self.get_tensor_expr(tensor), places)

    def _resize_bilinear(self, op: Any) -> Any:
        options = self._options(op, "ResizeBilinearOptions")
        (output,) = self.get_output_tensors(op)
        if options.AlignCorners() and 1 in self._declared_shape(output)[1:3]:
            raise UnsupportedOperator(
                "corners of one row or column can't be aligned: leave align_corners out"
            )
        return self.convert_resize_bilinear(op)

    def _blocks(self, op: Any) -> tuple[Any, list[int], list[int], list[list[int]]]:
        data, sizes, edges = self.get_input_tensors(op)
        return (
            self.get_tensor_expr(data),
            self._declared_shape(data),
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
        """Import a transposed convolution channels-first: (n, h, w, c) and weights (o, h, w, c)."""
        options = self._options(op, "TransposeConvOptions")
        tensors = self.get_input_tensors(op)
        weight, data = self._real(tensors[1]), self._real(tensors[2])
        (output,) = self.get_output_tensors(op)
        shape, kernel, wanted = (self._declared_shape(each) for each in (tensors[2], tensors[1], output))
        strides = [options.StrideH(), options.StrideW()]
        lows, highs, more = [], [], []
        for axis, stride in zip((1, 2), strides, strict=True):
            whole = (shape[axis] - 1) * stride + kernel[axis]
            cut = max(whole - wanted[axis], 0)
            if options.Padding() == 1 and cut:
                raise UnsupportedOperator(f"its output is shorter than {whole}, though its padding is VALID")
            lows.append(cut // 2)
            highs.append(cut - cut // 2)
            more.append(max(wanted[axis] - whole, 0))
        result = relax.op.nn.conv2d_transpose(
            relax.op.permute_dims(data, [0, 3, 1, 2]),
            relax.op.permute_dims(weight, [3, 0, 1, 2]),
            strides=strides,
            padding=[*lows, *highs],
            output_padding=[0, 0],
            data_layout="NCHW",
            kernel_layout="IOHW",
        )
        result = relax.op.permute_dims(self.bb.normalize(result), [0, 2, 3, 1])
        if any(more):
            result = relax.op.nn.pad(self.bb.normalize(result), [0, 0, 0, more[0], 0, more[1], 0, 0])
        if len(tensors) == 4 and tensors[3].tensor_idx != -1:
            result = relax.op.add(result, self._real(tensors[3]))
        result = self.convert_fused_activation_function(result, options.FusedActivationFunction())
        return self._stored(op, self.bb.normalize(result))
