"""AMX's products of tiles (search.sketches.tile_products). TVM has no intrinsic for them."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin

from compiler.codegen.tile_instructions import multiply_tiles
from compiler.lowering.dot_products import describe_tile
from compiler.tvmscript import T
from search.sketches.tile_products import TileProduct


def register(product: TileProduct) -> None:
    """Register an intrinsic with TVM."""
    described = _describe_taps(product) if product.taps > 1 else _describe(product)
    TensorIntrin.register(product.name, described, _implementation(product), override=True)


def _describe(product: TileProduct) -> Any:
    sizes = product.tall, product.lanes, product.depth, product.column_depth
    return describe_tile(*sizes, product.types[:3], product.stride)


def _describe_taps(product: TileProduct) -> Any:
    """Return the description c[tall, lanes] += a[stride * tall + taps, depth] . b[taps, depth, lanes]."""
    tall, lanes, depth, taps = product.tall, product.lanes, product.depth, product.taps
    stride, read = product.stride, product.read_rows
    rows, columns, total = product.types[:3]
    shape = _columns_shape(product)
    whole = tuple(slice(0, extent) for extent in shape)

    def place(tap: Any, lane: Any, k: Any) -> tuple[Any, ...]:
        each = product.column_depth
        return (tap, lane, k) if depth == each else (tap, k // each, lane, k % each)

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_stride = T.int32()
        c_stride = T.int32()
        A = T.match_buffer(a, (read, depth), rows, offset_factor=1, strides=[a_stride, 1])  # noqa: N806
        B = T.match_buffer(b, shape, columns, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (tall, lanes), total, offset_factor=1, strides=[c_stride, 1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:tall, 0:lanes], A[0:read, 0:depth], B[whole])
            T.writes(C[0:tall, 0:lanes])
            for i, x, j, k in T.grid(tall, taps, lanes, depth):
                with T.sblock("update"):
                    vi, vj, vx, vk = T.axis.remap("SSRR", [i, j, x, k])
                    C[vi, vj] = C[vi, vj] + T.cast(A[vi * stride + vx, vk], total) * T.cast(
                        B[place(vx, vj, vk)], total
                    )

    return described


def _columns_shape(product: TileProduct) -> tuple[int, ...]:
    """Return the packed columns' shape: taps, groups of neighbours, lanes, neighbours. One tap or group is
    left out."""
    each = product.column_depth
    outer = (extent for extent in (product.taps, product.depth // each) if extent > 1)
    return (*outer, product.lanes, each)


def _implementation(product: TileProduct) -> Any:
    tall, lanes, depth, read = product.tall, product.lanes, product.depth, product.read_rows
    rows, columns, total = product.types[:3]
    shape = _columns_shape(product)
    whole = tuple(slice(0, extent) for extent in shape)

    def multiply(sums: Any, sums_stride: Any, data: Any, data_stride: Any, packed: Any) -> tirx.Expr:
        pointers = sums.access_ptr("rw"), data.access_ptr("r"), packed.access_ptr("r")
        apart = data_stride * product.stride
        return multiply_tiles(product, pointers[0], sums_stride, pointers[1], apart, pointers[2])

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_stride = T.int32()
        c_stride = T.int32()
        A = T.match_buffer(a, (read, depth), rows, offset_factor=1, strides=[a_stride, 1])  # noqa: N806
        B = T.match_buffer(b, shape, columns, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (tall, lanes), total, offset_factor=1, strides=[c_stride, 1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:tall, 0:lanes], A[0:read, 0:depth], B[whole])
            T.writes(C[0:tall, 0:lanes])
            T.evaluate(multiply(C, c_stride, A, a_stride, B))

    return computed
