"""Descriptions and implementations of intrinsics that add dot products to a vector of sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compiler.tvmscript import T


@dataclass(frozen=True)
class DotProducts:
    """c[sums] += a[length] . b[sums, length]: element types of `a` (rows), `b` (columns) and `c` (total)."""

    sums: int
    length: int
    rows: str
    columns: str
    total: str

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
