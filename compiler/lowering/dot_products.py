"""Descriptions and implementations of intrinsics that add dot products to a vector of sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import TensorIntrin

from compiler.tvmscript import T
from search.sketches.intrinsics import Intrinsic


@dataclass(frozen=True)
class DotProducts:
    """c[sums] += a[length] . b[sums, length]: element types of `a` (rows), `b` (columns) and `c` (total)."""

    sums: int
    length: int
    rows: str
    columns: str
    total: str

    @classmethod
    def of(cls, intrinsic: Intrinsic) -> DotProducts:
        return cls(intrinsic.lanes, intrinsic.depth, intrinsic.rows, intrinsic.columns, intrinsic.sums)

    def register(self, name: str, compute: Callable[[Any, Any, Any], Any]) -> None:
        """Register an intrinsic with TVM; see `implementation`."""
        TensorIntrin.register(name, self.description(), self.implementation(compute), override=True)

    def description(self) -> Any:
        sums, length, rows, columns, total = self.sums, self.length, self.rows, self.columns, self.total

        @T.prim_func(s_tir=True)
        def described(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (length,), rows, offset_factor=1)  # noqa: N806
            B = T.match_buffer(b, (sums, length), columns, offset_factor=1)  # noqa: N806
            C = T.match_buffer(c, (sums,), total, offset_factor=1)  # noqa: N806
            with T.sblock("root"):
                T.reads(C[0:sums], A[0:length], B[0:sums, 0:length])
                T.writes(C[0:sums])
                for i in T.serial(0, sums):
                    for k in T.serial(0, length):
                        with T.sblock("update"):
                            vi, vk = T.axis.remap("SR", [i, k])
                            C[vi] = C[vi] + T.cast(A[vk], total) * T.cast(B[vi, vk], total)

        return described

    def implementation(self, compute: Callable[[Any, Any, Any], Any]) -> Any:
        """Return the implementation whose new sums are `compute(sums, row, columns)`.

        All are vectors. `row` has the bits of `a` as an int32 in each lane.
        """
        sums, length, rows, columns, total = self.sums, self.length, self.rows, self.columns, self.total

        @T.prim_func(s_tir=True)
        def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
            A = T.match_buffer(a, (length,), rows, offset_factor=1)  # noqa: N806
            B = T.match_buffer(b, (sums, length), columns, offset_factor=1)  # noqa: N806
            C = T.match_buffer(c, (sums,), total, offset_factor=1)  # noqa: N806
            with T.sblock("root"):
                T.reads(C[0:sums], A[0:length], B[0:sums, 0:length])
                T.writes(C[0:sums])
                C[T.ramp(T.int32(0), 1, sums)] = compute(
                    C.vload([0], dtype=f"{total}x{sums}"),
                    T.broadcast(T.reinterpret(A.vload([0], f"{rows}x{length}"), dtype="int32"), sums),
                    B.vload([0, 0], dtype=f"{columns}x{sums * length}"),
                )

        return computed


def describe_tile(
    tall: int, lanes: int, depth: int, each: int, types: tuple[str, str, str], stride: int = 1
) -> Any:
    """Return the description c[tall, lanes] += a[::stride][tall, depth] . b[depth // each, lanes, each].

    `types` are the element types of `a`, `b` and `c`.
    """
    rows, columns, total = types
    read = (tall - 1) * stride + 1

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_stride = T.int32()
        c_stride = T.int32()
        A = T.match_buffer(a, (read, depth), rows, offset_factor=1, strides=[a_stride, 1])  # noqa: N806
        B = T.match_buffer(b, (depth // each, lanes, each), columns, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (tall, lanes), total, offset_factor=1, strides=[c_stride, 1])  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:tall, 0:lanes], A[0:read, 0:depth], B[0 : depth // each, 0:lanes, 0:each])
            T.writes(C[0:tall, 0:lanes])
            for i, j, k in T.grid(tall, lanes, depth):
                with T.sblock("update"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    C[vi, vj] = C[vi, vj] + T.cast(A[vi * stride, vk], total) * T.cast(
                        B[vk // each, vj, vk % each], total
                    )

    return described
