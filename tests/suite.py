"""The suite's operators at small, odd shapes, each with a float64 reference written in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - teaches numpy bfloat16
import numpy as np
import tvm
from numpy.typing import NDArray

from benchmarks.suite import OPERATORS, SUMMED_IN, Shape
from compiler.target import detect_device
from search.sketches.half_products import adds_in_blocks

Array = NDArray[Any]
Reference = Callable[..., Array]

# Allowed errors relative to the value and to the greatest value, by computing type. A float64 reference gets
# inputs rounded to the workload's types, so only sums and results are rounded.
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2, "int32": 0.0}


@dataclass(frozen=True)
class Case:
    """One operator at one shape: its workload, seeded inputs and expected result."""

    operator: str
    shape: Shape
    batch: int = 1
    dtype: str = "float32"

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.operator}-{self.batch}-{shape}-{self.dtype}"

    def module(self) -> tvm.IRModule:
        return OPERATORS[self.operator].module(self.shape, self.batch, self.dtype)

    def arguments(self, seed: int = 0) -> list[Array]:
        """Return random inputs and, last, an output full of garbage, which a correct kernel overwrites."""
        rng = np.random.default_rng(seed)
        *inputs, output = (_described(parameter) for parameter in self.module()["main"].params)
        return [*(_random(rng, *one) for one in inputs), np.full(output[0], 113, dtype=output[1])]

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Return the result in float64, or in int64 for integers."""
        wide = np.int64 if self.dtype == "int8" else np.float64
        return REFERENCES[self.operator](self.shape, *(one.astype(wide) for one in inputs))

    def difference(self, actual: Array, expected: Array) -> str:
        """Return where a result differs from the reference's; "" if they agree."""
        computed_in = str(actual.dtype) if actual.dtype.itemsize < 4 else SUMMED_IN[self.dtype]
        if self.dtype == "float16" and adds_in_blocks(detect_device().features):
            computed_in = "float16"
        tolerance = TOLERANCE[computed_in]
        scale = float(np.max(np.abs(expected), initial=0.0))
        close = np.isclose(actual.astype(np.float64), expected, rtol=tolerance, atol=0.1 * tolerance * scale)
        if close.all():
            return ""
        worst = np.max(np.abs(actual.astype(np.float64) - expected)[~close])
        return f"{np.count_nonzero(~close)} of {close.size} values differ, by up to {worst:.3g}"


def _described(parameter: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(int(extent) for extent in parameter.ty.shape), np.dtype(str(parameter.ty.dtype))


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype == np.int8:
        return rng.integers(-128, 128, size=shape, dtype=np.int8)
    return rng.standard_normal(shape).astype(dtype)


def _convolve(data: Array, weight: Array, stride: int, padding: int, dilation: int = 1) -> Array:
    """Any number of spatial axes. data [N, *space, CI], weight [*kernel, CI, CO] -> [N, *space, CO]."""
    kernel = weight.shape[:-2]
    padded = np.pad(data, [(0, 0), *((padding, padding) for _ in kernel), (0, 0)])
    total: Array = np.zeros(())
    for offsets in np.ndindex(*kernel):
        window = padded[:, *_windows(padded.shape[1:], kernel, offsets, stride, dilation)]
        total = total + window @ weight[offsets]
    return total


def _windows(
    space: Sequence[int], kernel: Sequence[int], offsets: Sequence[int], stride: int, dilation: int
) -> list[slice]:
    """Return the inputs of the kernel's element at `offsets`, as a slice of every spatial axis."""
    found = []
    for extent, size, offset in zip(space, kernel, offsets, strict=False):
        positions = (extent - dilation * (size - 1) - 1) // stride + 1
        start = offset * dilation
        found.append(slice(start, start + (positions - 1) * stride + 1, stride))
    return found


def _convolution(stride: int, padding: int, dilation: int = 1, groups: int = 1) -> Reference:
    def compute(data: Array, weight: Array) -> Array:
        parts = zip(np.split(data, groups, axis=-1), np.split(weight, groups, axis=-1), strict=True)
        return np.concatenate([_convolve(d, w, stride, padding, dilation) for d, w in parts], axis=-1)

    return compute


def _conv2d(shape: Shape, data: Array, weight: Array) -> Array:
    return _convolution(*shape[5:])(data, weight)


def _depthwise(shape: Shape, data: Array, weight: Array) -> Array:
    """weight [1, KH, KW, C]: a convolution whose matrices are diagonal."""
    return _convolve(data, weight[0][..., None] * np.eye(data.shape[-1]), *shape[4:])


def _transposed(shape: Shape, data: Array, weight: Array) -> Array:
    """Every input value adds the whole kernel to the output; the padding is cut off afterwards."""
    height, width, _, channels, kernel, stride, padding = shape
    whole = ((height - 1) * stride + kernel, (width - 1) * stride + kernel)
    result = np.zeros((len(data), *whole, channels))
    for i, j in np.ndindex(height, width):
        spread = np.einsum("nc,hwco->nhwo", data[:, i, j], weight)
        result[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel] += spread
    return result[:, padding : whole[0] - padding, padding : whole[1] - padding]


def _capsule(shape: Shape, data: Array, weight: Array) -> Array:
    """Capsules are 4 x 4 matrices: the middle index is summed like a channel, one row at a time."""
    stride, padding = shape[5], shape[6]
    rows = []
    for i, j in np.ndindex(4, 4):
        flat = data[:, :, :, i].reshape(*data.shape[:3], -1)
        weights = weight[:, :, :, j].reshape(*weight.shape[:2], -1, weight.shape[-1])
        rows.append(_convolve(flat, weights, stride, padding))
    stacked = np.stack(rows, axis=3)
    return stacked.reshape(*stacked.shape[:3], 4, 4, -1)


def _norm(_shape: Shape, data: Array) -> Array:
    return np.sqrt(np.square(data).sum(axis=(1, 2)))


def _conv_layer(shape: Shape, data: Array, weight: Array, bias: Array, offset: Array, scale: Array) -> Array:
    return np.maximum((_convolution(*shape[5:])(data, weight) + bias) * scale + offset, 0.0)


def _softmax(_shape: Shape, data: Array) -> Array:
    powers = np.exp(data - data.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _transposed_matmul_softmax(shape: Shape, query: Array, key: Array) -> Array:
    return _softmax(shape, np.einsum("bihd,bjhd->bhij", query, key))


def _layer_norm(_shape: Shape, data: Array, scale: Array, shift: Array) -> Array:
    centred = data - data.mean(axis=1, keepdims=True)
    return centred / np.sqrt(data.var(axis=1, keepdims=True) + 1e-5) * scale + shift


def _gelu(_shape: Shape, data: Array) -> Array:
    return data * 0.5 * (1.0 + np.vectorize(math.erf)(data / math.sqrt(2.0)))


def _attention(shape: Shape, query: Array, key: Array, value: Array) -> Array:
    scores = np.einsum("bhid,bhjd->bhij", query, key) / math.sqrt(shape[2])
    return _softmax(shape, scores) @ value


REFERENCES: Mapping[str, Reference] = {
    "C1D": lambda shape, data, weight: _convolution(*shape[4:])(data, weight),
    "C2D": _conv2d,
    "C3D": lambda shape, data, weight: _convolution(*shape[6:])(data, weight),
    "GMM": lambda _shape, a, b: a @ b,
    "GRP": _conv2d,
    "DIL": _conv2d,
    "DEP": _depthwise,
    "T2D": _transposed,
    "CAP": _capsule,
    "NRM": _norm,
    "ConvLayer": _conv_layer,
    "TBS": _transposed_matmul_softmax,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "GELU": _gelu,
    "attention": _attention,
}

# Extents that are multiples of vectors and tiles, and odd ones (7, 13, 49, 1000).
SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "C1D": ((16, 8, 16, 3, 2, 1), (49, 7, 13, 5, 1, 2)),
    "C2D": ((14, 14, 8, 16, 3, 1, 1), (7, 7, 16, 32, 1, 1, 0), (13, 7, 3, 13, 7, 2, 3)),
    "C3D": ((4, 6, 6, 4, 8, 3, 1, 1), (3, 7, 5, 3, 7, 3, 2, 1)),
    "GMM": ((16, 32, 64), (49, 13, 7), (1, 1000, 13)),
    "GRP": ((8, 8, 16, 32, 3, 1, 1, 1, 4), (7, 7, 12, 28, 3, 2, 1, 1, 4)),
    "DIL": ((12, 12, 4, 16, 3, 1, 1, 2), (13, 7, 3, 13, 3, 2, 2, 2)),
    "DEP": ((14, 14, 16, 3, 1, 1), (7, 13, 49, 3, 2, 1)),
    "T2D": ((4, 4, 8, 16, 4, 2, 1), (7, 5, 3, 13, 4, 2, 1), (4, 4, 3, 7, 3, 1, 1)),
    "CAP": ((4, 4, 4, 8, 3, 2, 1), (5, 3, 3, 7, 3, 1, 1)),
    "NRM": ((16, 32), (13, 49), (7, 1000)),
    "ConvLayer": ((14, 14, 8, 16, 3, 1, 1), (7, 7, 13, 49, 3, 2, 1)),
    "TBS": ((16, 2, 8), (13, 3, 7)),
    "softmax": ((16, 32), (13, 49), (7, 1000)),
    "layer_norm": ((16, 32), (13, 49), (7, 1000)),
    "GELU": ((16, 32), (13, 49), (7, 1000)),
    "attention": ((2, 16, 8), (3, 13, 7)),
}


def cases(name: str) -> list[Case]:
    """Return every shape in float32, the first one also with a batch, and the odd one in other types."""
    shapes = SHAPES[name]
    others = [Case(name, shapes[1], dtype=dtype) for dtype in OPERATORS[name].dtypes if dtype != "float32"]
    return [*(Case(name, shape) for shape in shapes), Case(name, shapes[0], batch=2), *others]


CASES: tuple[Case, ...] = tuple(case for name in SHAPES for case in cases(name))
