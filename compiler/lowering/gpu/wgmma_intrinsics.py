"""Intrinsics for the matrix products of warpgroups: 64 rows, by `wgmma` of compute capability 9.0.

A tile in shared memory consists of columns of 16 bytes, `tile[column, row, element]`. Columns of 128 bytes
are swizzled: tensor maps fetch them (compiler.codegen.tensor_maps). The sums are a fragment of
64 x columns x 16 in the registers of 128 threads (compiler.codegen.warpgroups).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from compiler.tvmscript import T
from search.sketches.warpgroups import COLUMN_BYTES, GROUP_ROWS, MAP_BYTES, SUMS

SHARED, FRAGMENT = "shared.dyn", "wmma.accumulator"
# The types of operands in CUDA C.
CUDA_TYPES = {"float16": "half", "bfloat16": "__nv_bfloat16", "int8": "signed char"}
_NAME = re.compile(
    r"wgmma_(fill|store|sync)_(\d+)(_int32)?(?:x(\d+)_(float16|bfloat16|int8)_(rows|columns)(_swizzled)?)?"
)
# The shape of fragments names this reduction. Instructions may have another one.
_STEP = 16


@dataclass(frozen=True)
class WarpgroupProduct:
    """The product of a warpgroup: 64 rows, `columns` columns and a reduction of `depth`."""

    columns: int
    depth: int
    operand: str
    second_by_rows: bool
    unit: int

    @property
    def names(self) -> dict[str, str]:
        """The names of its intrinsics by role."""
        order = "rows" if self.second_by_rows else "columns"
        order += "_swizzled" if self.is_swizzled else ""
        sums = "_int32" if SUMS[self.operand] == "int32" else ""
        return {
            "init": f"wgmma_fill_{self.columns}{sums}",
            "compute": f"wgmma_sync_{self.columns}x{self.depth}_{self.operand}_{order}",
            "store": f"wgmma_store_{self.columns}{sums}",
        }

    @property
    def is_swizzled(self) -> bool:
        return self.unit == units(self.operand)[1]

    @property
    def second_shape(self) -> tuple[int, int, int]:
        rows, row = (self.depth, self.columns) if self.second_by_rows else (self.columns, self.depth)
        return row // self.unit, rows, self.unit

    @property
    def first_shape(self) -> tuple[int, int, int]:
        return self.depth // self.unit, GROUP_ROWS, self.unit

    @property
    def function(self) -> str:
        """The function in CUDA C that computes it."""
        by_rows = str(self.second_by_rows).lower()
        name = "multiply_swizzled" if self.is_swizzled else "multiply_tiles"
        return f"tensor_cores::{name}<{CUDA_TYPES[self.operand]}, {self.depth}, {by_rows}>"


def units(operand: str) -> tuple[int, int]:
    """Return the elements of a column, and of one that a tensor map fetches."""
    item = tvm.DataType(operand).bits // 8
    return COLUMN_BYTES // item, MAP_BYTES // item


def is_warpgroups(name: str) -> bool:
    """Return whether this module defines the intrinsic."""
    return _NAME.fullmatch(name) is not None


def register(name: str, generators: Any) -> None:
    """Register an intrinsic. `generators` is the TVM module that makes the intrinsics of fragments."""
    found = _NAME.fullmatch(name)
    assert found is not None, "the intrinsic is defined here"
    role, columns, wide, depth, operand, order, swizzled = found.groups()
    sides, sums = (GROUP_ROWS, int(columns), _STEP), "int32" if wide else "float32"
    if role == "fill":
        intrinsic = generators.get_wmma_fill_intrin(*sides, sums)
    elif role == "store":
        intrinsic = generators.get_wmma_store_intrin(*sides, sums, SHARED)
    else:
        unit = units(operand)[bool(swizzled)]
        product = WarpgroupProduct(int(columns), int(depth), operand, order == "rows", unit)
        intrinsic = _description(product), _implementation(product)
    TensorIntrin.register(name, *intrinsic)


def _description(product: WarpgroupProduct) -> PrimFunc:
    columns, depth, operand, unit = product.columns, product.depth, product.operand, product.unit
    first, second, sums = product.first_shape, product.second_shape, SUMS[operand]
    box = tuple(slice(0, extent) for extent in second)

    @T.prim_func(s_tir=True)
    def described(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, first, operand, align=64, offset_factor=unit, scope=SHARED)  # noqa: N806
        B = T.match_buffer(b, second, operand, align=64, offset_factor=unit, scope=SHARED)  # noqa: N806
        C = T.match_buffer(  # noqa: N806
            c, (GROUP_ROWS, columns), sums, align=64, offset_factor=columns, scope=FRAGMENT
        )
        with T.sblock("root"):
            T.reads(C[0:GROUP_ROWS, 0:columns], A[0 : depth // unit, 0:GROUP_ROWS, 0:unit], B[box])
            T.writes(C[0:GROUP_ROWS, 0:columns])
            for i, j, k in T.grid(GROUP_ROWS, columns, depth):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    along, across = T.meta_var((vj, vk) if product.second_by_rows else (vk, vj))
                    C[vi, vj] = C[vi, vj] + T.cast(A[vk // unit, vi, vk % unit], sums) * T.cast(
                        B[along // unit, across, along % unit], sums
                    )

    return described


def _implementation(product: WarpgroupProduct) -> PrimFunc:
    columns, depth, operand, unit = product.columns, product.depth, product.operand, product.unit
    first, second, sums = product.first_shape, product.second_shape, SUMS[operand]
    box = tuple(slice(0, extent) for extent in second)

    @T.prim_func(s_tir=True)
    def computed(a: T.handle, b: T.handle, c: T.handle) -> None:
        a_column = T.int32()
        a_row = T.int32()
        b_column = T.int32()
        b_row = T.int32()
        c_row = T.int32()
        c_column = T.int32()
        A = T.match_buffer(  # noqa: N806
            a, first, operand, align=64, offset_factor=unit, scope=SHARED, strides=[a_column, a_row, 1]
        )
        B = T.match_buffer(  # noqa: N806
            b, second, operand, align=64, offset_factor=unit, scope=SHARED, strides=[b_column, b_row, 1]
        )
        C = T.match_buffer(  # noqa: N806
            c,
            (GROUP_ROWS, columns),
            sums,
            align=64,
            offset_factor=columns,
            scope=FRAGMENT,
            strides=[c_row, c_column],
        )
        with T.sblock("root"):
            T.reads(C[0:GROUP_ROWS, 0:columns], A[0 : depth // unit, 0:GROUP_ROWS, 0:unit], B[box])
            T.writes(C[0:GROUP_ROWS, 0:columns])
            T.evaluate(
                T.call_extern(
                    "void",
                    product.function,
                    C.data,
                    A.access_ptr("r"),
                    a_column,
                    B.access_ptr("r"),
                    b_column,
                )
            )

    return computed
