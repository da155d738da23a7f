"""The operators that benchmarks and tests search: the Ansor paper's suite, and operators of transformers.

An operator that MetaSchedule's `te_workload` defines is used as defined there, so that both engines get
the same module. Everything is channels-last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, topi
from tvm.s_tir.meta_schedule.testing import te_workload

Shape = tuple[int, ...]
# (batch, shape, element type of the inputs, element type of sums) -> inputs and output
Make = Callable[[int, Shape, str, str], tuple[te.Tensor, ...]]

# Element type of the inputs -> element type of sums and of the result.
SUMMED_IN: Mapping[str, str] = {
    "float32": "float32",
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
}
FLOATS = ("float32", "float16", "bfloat16")
WITH_INT8 = (*FLOATS, "int8")


@dataclass(frozen=True)
class Operator:
    """An operator by the paper's name; `shapes` are the paper's four, or similar ones, without the batch.

    Benchmarks use the shape `benchmark`, whose slowest programs still end within seconds.
    """

    name: str
    make: Make
    shapes: tuple[Shape, Shape, Shape, Shape]
    benchmark: Shape
    dtypes: tuple[str, ...] = FLOATS

    def module(self, shape: Shape, batch: int = 1, dtype: str = "float32") -> tvm.IRModule:
        """Return the workload with its function named `main`. Raises ValueError for an unknown element
        type."""
        if dtype not in self.dtypes:
            raise ValueError(f"{self.name} comes in {', '.join(self.dtypes)}, not in {dtype}")
        tensors = list(self.make(batch, shape, dtype, SUMMED_IN[dtype]))
        return tvm.IRModule({"main": te.create_prim_func(tensors).with_attr("tirx.noalias", True)})


def _from_te_workload(define: Callable[..., Any]) -> Make:
    """Wrap one of MetaSchedule's definitions; a shape is its parameters in their order, without the batch."""
    return lambda batch, shape, dtype, summed: define(batch, *shape, in_dtype=dtype, out_dtype=summed)


def _norm(batch: int, shape: Shape, _dtype: str, _summed: str) -> tuple[te.Tensor, ...]:
    return te_workload.norm_bmn(batch, *shape)


def _transposed_matmul_softmax(batch: int, shape: Shape, dtype: str, summed: str) -> tuple[te.Tensor, ...]:
    query, key, scores = te_workload.transpose_batch_matmul(batch, *shape, in_dtype=dtype, out_dtype=summed)
    return query, key, topi.nn.softmax(scores, axis=3)


def _softmax(batch: int, shape: Shape, dtype: str, _summed: str) -> tuple[te.Tensor, ...]:
    data = _rows(batch, shape, dtype)
    return data, topi.nn.softmax(data, axis=1)


def _layer_norm(batch: int, shape: Shape, dtype: str, _summed: str) -> tuple[te.Tensor, ...]:
    data = _rows(batch, shape, dtype)
    scale, shift = (te.placeholder(shape[1:], dtype, name=name) for name in ("scale", "shift"))
    return data, scale, shift, topi.nn.layer_norm(data, scale, shift, [1])


def _gelu(batch: int, shape: Shape, dtype: str, summed: str) -> tuple[te.Tensor, ...]:
    """x * 0.5 * (1 + erf(x / sqrt(2))), in float32 for every x: LLVM has no error function of narrower
    types."""
    data = _rows(batch, shape, dtype)
    half, one, root = (tvm.tirx.const(value, summed) for value in (0.5, 1.0, 2.0**-0.5))

    def gelu(i: Any, j: Any) -> Any:
        value = data[i, j].astype(summed)
        return (value * half * (one + te.erf(value * root))).astype(dtype)

    return data, te.compute(data.shape, gelu, name="gelu")


def _rows(batch: int, shape: Shape, dtype: str) -> te.Tensor:
    rows, columns = shape
    return te.placeholder((batch * rows, columns), dtype, name="A")


def _attention(batch: int, shape: Shape, dtype: str, summed: str) -> tuple[te.Tensor, ...]:
    """softmax(Q K^T / sqrt(dim)) V for every head, in float32 for every input type."""
    heads, length, dim = shape
    q, k, v = (te.placeholder((batch, heads, length, dim), dtype, name=name) for name in ("Q", "K", "V"))
    d, t = te.reduce_axis((0, dim), name="d"), te.reduce_axis((0, length), name="t")
    scores = te.compute(
        (batch, heads, length, length),
        lambda b, h, i, j: te.sum(q[b, h, i, d].astype(summed) * k[b, h, j, d].astype(summed), axis=[d]),
        name="scores",
    )
    root = tvm.tirx.const(dim**-0.5, summed)
    scaled = te.compute(scores.shape, lambda b, h, i, j: scores[b, h, i, j] * root, name="scaled")
    weights = topi.nn.softmax(scaled, axis=3)
    result = te.compute(
        q.shape,
        lambda b, h, i, c: te.sum(weights[b, h, i, t] * v[b, h, t, c].astype(summed), axis=[t]),
        name="attention",
    )
    return q, k, v, result


_CONV1D = _from_te_workload(te_workload.conv1d_nlc)
_CONV2D = _from_te_workload(te_workload.conv2d_nhwc)
_CONV3D = _from_te_workload(te_workload.conv3d_ndhwc)
_MATMUL = _from_te_workload(te_workload.batch_matmul_nkkm)
_DEPTHWISE = _from_te_workload(te_workload.depthwise_conv2d_nhwc)
_TRANSPOSED = _from_te_workload(te_workload.conv2d_transpose_nhwc)
_CAPSULE = _from_te_workload(te_workload.conv2d_capsule_nhwijc)
_CONV_LAYER = _from_te_workload(te_workload.conv2d_nhwc_bn_relu)

_OPERATORS = (
    # length, channels in and out, kernel, stride, padding
    Operator(
        "C1D",
        _CONV1D,
        ((256, 64, 128, 3, 2, 1), (128, 128, 256, 1, 2, 0), (64, 256, 256, 5, 1, 2), (32, 512, 512, 3, 1, 1)),
        (64, 256, 256, 5, 1, 2),
    ),
    # height, width, channels in and out, kernel, stride, padding
    Operator(
        "C2D",
        _CONV2D,
        (
            (224, 224, 3, 64, 7, 2, 3),
            (56, 56, 64, 64, 1, 1, 0),
            (14, 14, 256, 256, 3, 1, 1),
            (7, 7, 512, 512, 3, 1, 1),
        ),
        (14, 14, 256, 256, 3, 1, 1),
        WITH_INT8,
    ),
    # the same behind a depth
    Operator(
        "C3D",
        _CONV3D,
        (
            (16, 224, 224, 3, 64, 7, 2, 3),
            (16, 56, 56, 64, 64, 1, 1, 0),
            (16, 14, 14, 256, 256, 3, 1, 1),
            (16, 7, 7, 512, 512, 3, 1, 1),
        ),
        (16, 56, 56, 64, 64, 1, 1, 0),
    ),
    # rows, columns, terms of a sum
    Operator(
        "GMM",
        _MATMUL,
        ((128, 128, 128), (512, 32, 512), (512, 512, 512), (1024, 1024, 1024)),
        (512, 512, 512),
        WITH_INT8,
    ),
    # C2D, dilation, groups
    Operator(
        "GRP",
        _CONV2D,
        (
            (56, 56, 64, 128, 3, 2, 1, 1, 4),
            (56, 56, 64, 64, 1, 1, 0, 1, 4),
            (14, 14, 256, 256, 3, 1, 1, 1, 4),
            (7, 7, 512, 512, 3, 1, 1, 1, 4),
        ),
        (14, 14, 256, 256, 3, 1, 1, 1, 4),
    ),
    # C2D, dilation
    Operator(
        "DIL",
        _CONV2D,
        (
            (224, 224, 3, 64, 7, 2, 3, 2),
            (56, 56, 64, 64, 1, 1, 0, 2),
            (14, 14, 256, 256, 3, 1, 1, 2),
            (7, 7, 512, 512, 3, 1, 1, 2),
        ),
        (14, 14, 256, 256, 3, 1, 1, 2),
    ),
    # height, width, channels, kernel, stride, padding
    Operator(
        "DEP",
        _DEPTHWISE,
        ((112, 112, 32, 3, 1, 1), (112, 112, 64, 3, 2, 1), (14, 14, 512, 3, 2, 1), (7, 7, 1024, 3, 1, 1)),
        (112, 112, 32, 3, 1, 1),
    ),
    # as C2D
    Operator(
        "T2D",
        _TRANSPOSED,
        (
            (4, 4, 512, 256, 4, 2, 1),
            (8, 8, 256, 128, 4, 2, 1),
            (16, 16, 128, 64, 4, 2, 1),
            (32, 32, 64, 3, 4, 2, 1),
        ),
        (8, 8, 256, 128, 4, 2, 1),
    ),
    # as C2D, capsules of 4 x 4
    Operator(
        "CAP",
        _CAPSULE,
        (
            (16, 16, 32, 32, 3, 2, 1),
            (8, 8, 32, 32, 3, 1, 1),
            (16, 16, 8, 16, 3, 2, 1),
            (8, 8, 16, 16, 3, 1, 1),
        ),
        (16, 16, 32, 32, 3, 2, 1),
    ),
    # rows and columns of the matrix
    Operator(
        "NRM", _norm, ((256, 256), (512, 512), (1024, 1024), (4096, 1024)), (1024, 1024), dtypes=("float32",)
    ),
    # as C2D, then bias, batch norm and rectifier
    Operator(
        "ConvLayer",
        _CONV_LAYER,
        (
            (224, 224, 3, 64, 7, 2, 3),
            (56, 56, 64, 128, 3, 2, 1),
            (28, 28, 128, 256, 1, 2, 0),
            (7, 7, 512, 512, 3, 1, 1),
        ),
        (56, 56, 64, 128, 3, 2, 1),
    ),
    # sequence, heads, size of a head: both operands transposed, multiplied, softmax
    Operator(
        "TBS",
        _transposed_matmul_softmax,
        ((128, 12, 64), (128, 16, 64), (64, 12, 128), (128, 12, 128)),
        (128, 12, 64),
    ),
    # rows, columns
    Operator("softmax", _softmax, ((256, 256), (512, 512), (1024, 1024), (2048, 2048)), (512, 512)),
    Operator(
        "layer_norm",
        _layer_norm,
        ((128, 768), (128, 1024), (512, 768), (512, 1024)),
        (128, 768),
        dtypes=("float32", "float16"),  # all that topi offers
    ),
    Operator("GELU", _gelu, ((128, 3072), (128, 4096), (512, 3072), (512, 4096)), (128, 3072)),
    # heads, sequence, size of a head
    Operator(
        "attention",
        _attention,
        ((12, 128, 64), (16, 128, 64), (12, 64, 128), (12, 128, 128)),
        (12, 128, 64),
    ),
)

OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in _OPERATORS}
