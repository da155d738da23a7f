"""Small workloads of every kind of operator, as TE makes them."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import te, topi

Tensors = list[te.Tensor]


def module(tensors: Tensors) -> tvm.IRModule:
    function = te.create_prim_func(tensors).with_attr("tirx.noalias", True)
    return tvm.IRModule({"main": function})


def conv2d(size: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> tvm.IRModule:
    """Convolution, bias, rectifier; channels last."""
    data = te.placeholder((1, size, size, inputs), name="data")
    weight = te.placeholder((kernel, kernel, inputs, outputs), name="weight")
    bias = te.placeholder((1, 1, 1, outputs), name="bias")
    conv = topi.nn.conv2d(data, weight, stride, padding, 1, "NHWC", "HWIO")
    return module([data, weight, bias, topi.nn.relu(topi.add(conv, bias))])


def matmul(n: int, m: int, k: int) -> tvm.IRModule:
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    return module([a, b, topi.matmul(a, b)])


def batch_matmul(batch: int, n: int, m: int, k: int) -> tvm.IRModule:
    a, b = te.placeholder((batch, n, k), name="a"), te.placeholder((batch, k, m), name="b")
    return module([a, b, topi.nn.batch_matmul(a, b, transpose_a=False, transpose_b=False)])


def depthwise(size: int, channels: int, kernel: int, stride: int) -> tvm.IRModule:
    data = te.placeholder((1, size, size, channels), name="data")
    weight = te.placeholder((kernel, kernel, channels, 1), name="weight")
    conv = topi.nn.depthwise_conv2d_nhwc(data, weight, stride, 1, 1)
    return module([data, weight, topi.clip(conv, 0.0, 6.0)])


def max_pool(size: int, channels: int) -> tvm.IRModule:
    data = te.placeholder((1, size, size, channels), name="data")
    pooled = topi.nn.pool2d(data, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max", layout="NHWC")
    return module([data, pooled])


def global_pool(size: int, channels: int) -> tvm.IRModule:
    data = te.placeholder((1, size, size, channels), name="data")
    return module([data, topi.nn.global_pool(data, "avg", layout="NHWC")])


def softmax(rows: int, columns: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    return module([data, topi.nn.softmax(data)])


def add_relu(size: int, channels: int) -> tvm.IRModule:
    a = te.placeholder((1, size, size, channels), name="a")
    b = te.placeholder((1, size, size, channels), name="b")
    return module([a, b, topi.nn.relu(topi.add(a, b))])


def transpose(rows: int, columns: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    return module([data, topi.transpose(data)])


def take(rows: int, columns: int, count: int) -> tvm.IRModule:
    table = te.placeholder((rows, columns), name="table")
    indices = te.placeholder((count,), dtype="int64", name="indices")
    return module([table, indices, topi.take(table, indices, axis=0)])


def residual(n: int, m: int, k: int) -> tvm.IRModule:
    """A matrix product, another tensor added to it, rectified."""
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    c = te.placeholder((n, m), name="c")
    return module([a, b, c, topi.nn.relu(topi.add(topi.matmul(a, b), c))])


def two_matmuls(n: int) -> tvm.IRModule:
    a, b, c = (te.placeholder((n, n), name=name) for name in "abc")
    return module([a, b, c, topi.matmul(topi.nn.relu(topi.matmul(a, b)), c)])


def conv2d_transpose(size: int, inputs: int, outputs: int) -> tvm.IRModule:
    data = te.placeholder((1, inputs, size, size), name="data")
    weight = te.placeholder((inputs, outputs, 4, 4), name="weight")
    conv = topi.nn.conv2d_transpose_nchw(data, weight, (2, 2), (1, 1), "float32", (0, 0))
    return module([data, weight, conv])


def layer_norm(rows: int, columns: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    scale, shift = te.placeholder((columns,), name="scale"), te.placeholder((columns,), name="shift")
    return module([data, scale, shift, topi.nn.layer_norm(data, scale, shift, [1])])


def scale_shift(rows: int, columns: int) -> tvm.IRModule:
    """Two vectors read again for every row."""
    data = te.placeholder((rows, columns), name="data")
    scale, shift = te.placeholder((columns,), name="scale"), te.placeholder((columns,), name="shift")
    shape = (rows, columns)
    return module(
        [data, scale, shift, te.compute(shape, lambda i, j: data[i, j] * scale[j] + shift[j], name="affine")]
    )


def total(count: int) -> tvm.IRModule:
    """A sum of everything: a result without axes."""
    data = te.placeholder((count,), name="data")
    return module([data, topi.sum(data)])


WORKLOADS: dict[str, Callable[[], tvm.IRModule]] = {
    "conv2d": lambda: conv2d(14, 16, 32, 3, 1, 1),
    "conv2d_stride": lambda: conv2d(15, 3, 24, 7, 2, 3),
    "conv2d_1x1": lambda: conv2d(7, 32, 48, 1, 1, 0),
    "matmul": lambda: matmul(32, 48, 64),
    "matmul_vector": lambda: matmul(1, 1000, 64),
    "matmul_prime": lambda: matmul(7, 13, 11),
    "batch_matmul": lambda: batch_matmul(3, 16, 24, 20),
    "depthwise": lambda: depthwise(14, 32, 3, 1),
    "max_pool": lambda: max_pool(14, 32),
    "global_pool": lambda: global_pool(7, 64),
    "softmax": lambda: softmax(16, 40),
    "add_relu": lambda: add_relu(14, 24),
    "transpose": lambda: transpose(24, 40),
    "take": lambda: take(50, 16, 12),
    "residual": lambda: residual(24, 32, 40),
    "two_matmuls": lambda: two_matmuls(16),
    "conv2d_transpose": lambda: conv2d_transpose(5, 8, 4),
    "layer_norm": lambda: layer_norm(12, 32),
    "scale_shift": lambda: scale_shift(16, 32),
    "total": lambda: total(64),
}
