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
    described = describe_tile(
        product.tall, product.lanes, product.depth, product.column_depth, product.types[:3], product.stride
    )
    TensorIntrin.register(product.name, described, _implementation(product), override=True)


def _implementation(product: TileProduct) -> Any:
    tall, lanes, depth, each = product.tall, product.lanes, product.depth, product.column_depth
    rows, columns, total = product.types[:3]
    read = (tall - 1) * product.stride + 1

    def multiply(sums: Any, sums_stride: Any, data: Any, data_stride: Any, packed: Any) -> tirx.Expr:
        pointers = sums.access_ptr("rw"), data.access_ptr("r"), packed.access_ptr("r")
        apart = data_stride * product.stride
        return multiply_tiles(product, pointers[0], sums_stride, pointers[1], apart, pointers[2])

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_stride = T.int32()
        c_stride = T.int32()
        A = T.match_buffer(a, (read, depth), rows, offset_factor=1, strides=[a_stride, 1])  # noqa: N806
        B = T.match_buffer(b, (depth // each, lanes, each), columns, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (tall, lanes), total, offset_factor=1, strides=[c_stride, 1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:tall, 0:lanes], A[0:read, 0:depth], B[0 : depth // each, 0:lanes, 0:each])
            T.writes(C[0:tall, 0:lanes])
            T.evaluate(multiply(C, c_stride, A, a_stride, B))

    return computed
