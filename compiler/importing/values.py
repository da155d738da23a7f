"""The values and nodes of an ONNX graph while it is imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from tvm import relax

from compiler.constants.fold import static_shape
from compiler.importing.spec import NARROW, STORAGE, Shape, storage_of

Array = NDArray[Any]
# The opset in which converters are written.
OPSET = 21


@dataclass(frozen=True)
class Padding:
    """Along `axis`, the first `count` (a scalar of int64) parts of a value are valid."""

    axis: int
    count: Value


class Value:
    """A tensor of static shape: a constant of the model, or the result of an expression. `padding` gives the
    valid rows, which the data decides; without it, all rows are valid. If the expression computes codes of a
    narrow type, in STORAGE, `narrow` is that type."""

    def __init__(
        self,
        constant: Array | None = None,
        expr: Any = None,
        padding: Padding | None = None,
        narrow: str = "",
    ) -> None:
        self._constant = constant
        self._expr = expr
        self.padding = padding
        self._narrow = narrow

    @property
    def constant(self) -> Array | None:
        """The value of a constant of the model."""
        return self._constant

    def with_padding(self, padding: Padding | None) -> Value:
        return self if padding is self.padding else Value(self.constant, self._expr, padding, self._narrow)

    def stored(self) -> Value:
        """Return the codes of a narrow type's elements, as STORAGE."""
        constant = self.constant if self.constant is None else to_storage(self.constant)
        return Value(constant, self._expr, self.padding)

    def narrowed(self, dtype: str) -> Value:
        """Return elements of a narrow type, whose codes this value is."""
        if self.constant is not None:
            return Value(from_storage(self.constant, dtype), None, self.padding)
        return Value(None, self._expr, self.padding, dtype)

    @cached_property
    def expr(self) -> relax.Expr:
        if self.constant is None or self._expr is not None:
            return self._expr
        return relax.const(np.asarray(to_storage(self.constant), order="C"), storage_of(self.dtype))

    @cached_property
    def shape(self) -> Shape:
        if self.constant is not None:
            return tuple(self.constant.shape)
        shape = static_shape(self._expr)
        assert shape is not None
        return shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def dtype(self) -> str:
        """The element type: the name of a type of numpy or ml_dtypes."""
        if self.constant is not None:
            return str(self.constant.dtype)
        return self._narrow or str(self._expr.ty.dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def known(self, what: str) -> Array:
        """Return the value of a constant. Raises UnsupportedOperator, which asks for `what`."""
        if self.constant is None:
            raise UnsupportedOperator(f"{what} must be a constant of the model")
        return self.constant

    def onnx_type(self) -> onnx.TypeProto:
        elem_type = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(self.dtype))
        return onnx.helper.make_tensor_type_proto(elem_type, self.shape)


class BlockQuantized(Value):
    """A constant matrix of float32: (codes - zeros) * scales, with a scale and a zero for each block of a
    column. Products read its codes. Each other reader converts it to float32.

    `codes` are uint8 numbers of `bits` bits, [columns, blocks, block]. `scales` and `zeros` are [columns,
    blocks]. The matrix is [rows, columns], or [columns, rows] if it `is_turned`.
    """

    def __init__(self, codes: Array, scales: Array, zeros: Array, bits: int, is_turned: bool = False) -> None:
        super().__init__()
        self.codes, self.scales, self.zeros, self.bits = codes, scales, zeros, bits
        self.is_turned = is_turned

    def turned(self) -> BlockQuantized:
        """Return the transposed matrix."""
        return BlockQuantized(self.codes, self.scales, self.zeros, self.bits, not self.is_turned)

    @property
    def constant(self) -> Array:
        zeros, scales = (one[..., np.newaxis].astype(np.float32) for one in (self.zeros, self.scales))
        floats = (self.codes.astype(np.float32) - zeros) * scales
        matrix = floats.reshape(len(floats), -1).astype(self.dtype)
        return matrix if self.is_turned else np.ascontiguousarray(matrix.T)

    @cached_property
    def shape(self) -> Shape:
        columns, blocks, block = self.codes.shape
        return (columns, blocks * block) if self.is_turned else (blocks * block, columns)

    @cached_property
    def dtype(self) -> str:
        return str(self.scales.dtype)


class UnsupportedOperator(ValueError):
    """A node can't be imported. The message says why; the importer adds the node."""


@dataclass(frozen=True)
class NameScope:
    values: Mapping[str, Value]
    opsets: Mapping[str, int]


@dataclass(frozen=True)
class Node:
    """A node whose inputs are known. An input that was left out is None."""

    domain: str
    kind: str
    opset: int
    inputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto
    scope: NameScope

    @property
    def operator(self) -> str:
        return f"{self.domain}.{self.kind}" if self.domain else self.kind

    def optional(self, position: int) -> Value | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def input(self, position: int) -> Value:
        """Return an input. Raises UnsupportedOperator if it was left out."""
        value = self.optional(position)
        if value is None:
            raise UnsupportedOperator(f"input {position} is missing")
        return value

    def wants(self, position: int) -> bool:
        """Return whether this output may be used."""
        return position < len(self.outputs) and self.outputs[position] != ""


class Operators(Protocol):
    """A graph that imports ONNX operators one by one, as `compiler.importing.onnx_graph.Graph` does."""

    def op(
        self,
        kind: str,
        *inputs: Value | ArrayLike | None,
        domain: str = "",
        opset: int = OPSET,
        **attributes: Any,
    ) -> Value: ...

    def ops(
        self,
        kind: str,
        num_outputs: int,
        *inputs: Value | ArrayLike | None,
        domain: str = "",
        opset: int = OPSET,
        **attributes: Any,
    ) -> list[Value]: ...

    def value(self, value: Value | ArrayLike) -> Value: ...


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type of an element type, including types of ml_dtypes."""
    return _DTYPES[name] if name in _DTYPES else np.dtype(name)


def to_storage(array: Array) -> Array:
    """Return an array in the form for compiled code: for narrow types, their codes."""
    dtype = str(array.dtype)
    if dtype not in NARROW:
        return array
    return array.view(STORAGE) & np.uint8((1 << NARROW[dtype]) - 1)


def from_storage(array: Array, dtype: str) -> Array:
    """Convert an array from compiled code to this type."""
    return array.view(numpy_dtype(dtype)) if dtype in NARROW else array


_DTYPES = {
    str(dtype): dtype
    for number in onnx.TensorProto.DataType.values()
    if number not in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING)
    for dtype in [onnx.helper.tensor_dtype_to_np_dtype(number)]
}
