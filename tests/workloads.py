"""Small workloads of every kind of operator, made by TE."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import te, topi
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

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
    """Two vectors that are read again for every row."""
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


def typed_matmul(dtype: str, summed: str) -> tvm.IRModule:
    """16x24x32, its products summed in another type than its operands have."""
    a, b = te.placeholder((16, 32), dtype, name="a"), te.placeholder((32, 24), dtype, name="b")
    k = te.reduce_axis((0, 32), name="k")
    products = te.compute(
        (16, 24), lambda i, j: te.sum(a[i, k].astype(summed) * b[k, j].astype(summed), axis=k), name="matmul"
    )
    return module([a, b, products])


def group_conv2d(size: int, channels: int, groups: int) -> tvm.IRModule:
    data = te.placeholder((1, channels, size, size), name="data")
    weight = te.placeholder((2 * channels, channels // groups, 3, 3), name="weight")
    return module([data, weight, topi.nn.group_conv2d_nchw(data, weight, 1, 1, 1, groups)])


def winograd(size: int, inputs: int, outputs: int) -> tvm.IRModule:
    data = te.placeholder((1, size, size, inputs), name="data")
    weight = te.placeholder((3, 3, inputs, outputs), name="weight")
    return module([data, weight, topi.nn.conv2d_winograd_nhwc(data, weight, 1, 1, 1, "float32")])


def attention(heads: int, length: int, width: int) -> tvm.IRModule:
    query, key, value = (te.placeholder((heads, length, width), name=name) for name in ("q", "k", "v"))
    weights = topi.nn.softmax(topi.nn.batch_matmul(query, key))
    return module([query, key, value, topi.nn.batch_matmul(weights, value, transpose_b=False)])


def norm(rows: int, columns: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    return module([data, topi.sqrt(topi.sum(topi.multiply(data, data), axis=1))])


def log_softmax(rows: int, columns: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    return module([data, topi.nn.log_softmax(data)])


def argmax(rows: int, columns: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    return module([data, topi.argmax(data, axis=1)])


def gather(rows: int, columns: int, count: int) -> tvm.IRModule:
    data = te.placeholder((rows, columns), name="data")
    positions = te.placeholder((rows, count), dtype="int64", name="positions")
    return module([data, positions, topi.gather(data, 1, positions)])


def split_heads(length: int, heads: int, width: int) -> tvm.IRModule:
    data = te.placeholder((1, length, heads * width), name="data")
    parted = topi.reshape(data, (1, length, heads, width))
    return module([data, topi.transpose(parted, (0, 2, 1, 3))])


def fold_rows(rows: int, columns: int) -> tvm.IRModule:
    """A reshape of rows into rows of another length."""
    data = te.placeholder((rows, columns), name="data")
    return module([data, topi.nn.relu(topi.reshape(data, (columns, rows)))])


def concatenate(rows: int) -> tvm.IRModule:
    a, b = te.placeholder((rows, 12), name="a"), te.placeholder((rows, 20), name="b")
    return module([a, b, topi.concatenate([a, b], axis=1)])


def scalar() -> tvm.IRModule:
    data = te.placeholder((), name="data")
    return module([data, te.compute((), lambda: data() * data() + 1.0, name="squared")])


def tiled_by_hand() -> tvm.IRModule:
    """A matrix product whose loops were split and reordered before we see it."""

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((16, 8), "float32"), b: T.Buffer((8, 12), "float32"), c: T.Buffer((16, 12), "float32")
    ):
        T.func_attr({"tirx.noalias": True})
        for io, k, j, ii in T.grid(4, 8, 12, 4):
            with T.sblock("product"):
                vi = T.axis.spatial(16, io * 4 + ii)
                vj = T.axis.spatial(12, j)
                vk = T.axis.reduce(8, k)
                with T.init():
                    c[vi, vj] = T.float32(0)
                c[vi, vj] = c[vi, vj] + a[vi, vk] * b[vk, vj]

    return tvm.IRModule({"main": main})


def guarded() -> tvm.IRModule:
    """Loops that exceed the extent, with a condition that guards it."""

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((30,), "float32"), y: T.Buffer((30,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for io, ii in T.grid(4, 8):
            with T.sblock("copy"):
                vi = T.axis.spatial(30, io * 8 + ii)
                T.where(io * 8 + ii < 30)
                y[vi] = x[vi] + T.float32(1)

    return tvm.IRModule({"main": main})


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
    "softmax_prime": lambda: softmax(6, 131),
    "add_relu": lambda: add_relu(14, 24),
    "add_relu_narrow": lambda: add_relu(5, 3),
    "transpose": lambda: transpose(24, 40),
    "take": lambda: take(50, 16, 12),
    "residual": lambda: residual(24, 32, 40),
    "two_matmuls": lambda: two_matmuls(16),
    "conv2d_transpose": lambda: conv2d_transpose(5, 8, 4),
    "layer_norm": lambda: layer_norm(12, 32),
    "scale_shift": lambda: scale_shift(16, 32),
    "total": lambda: total(64),
    "total_prime": lambda: total(1009),
    "int8": lambda: typed_matmul("int8", "int32"),
    "float16": lambda: typed_matmul("float16", "float32"),
    "bfloat16": lambda: typed_matmul("bfloat16", "float32"),
    "group_conv2d": lambda: group_conv2d(7, 8, 4),
    "winograd": lambda: winograd(8, 4, 8),
    "attention": lambda: attention(2, 12, 8),
    "norm": lambda: norm(6, 40),
    "log_softmax": lambda: log_softmax(6, 40),
    "argmax": lambda: argmax(12, 20),
    "gather": lambda: gather(10, 16, 6),
    "split_heads": lambda: split_heads(6, 4, 16),
    "fold_rows": lambda: fold_rows(12, 20),
    "concatenate": lambda: concatenate(8),
    "scalar": scalar,
    "tiled_by_hand": tiled_by_hand,
    "guarded": guarded,
}
