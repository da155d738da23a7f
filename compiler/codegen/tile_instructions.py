"""Use AMX's instructions, which work on tiles that a thread has to configure.

A kernel calls functions in LLVM's IR. They name the tile registers, because LLVM would otherwise configure
tiles in every function that uses them, and this sets all tiles to zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.tirx import AttrStmt, Evaluate, For, ForKind, IfThenElse, PrimFunc, SeqStmt

from compiler.codegen.rewrite import rewrite_prim_funcs
from compiler.tir_nodes import find_all
from search.sketches.tile_products import ROW_BYTES, SIDE, TILE_ROWS, TileProduct, tile_product

# The prefixes of the functions that multiply and that configure tiles, and the function that releases
# tiles.
_MULTIPLY, _CONFIGURE, _RELEASE = "tunefarm_", "tunefarm_tiles_", "tunefarm_release_tiles"
# The numbers of the first tile of rows and of the first tile of columns. Tiles of sums have lower numbers.
_ROWS, _COLUMNS = SIDE * SIDE, SIDE * SIDE + SIDE
_PALETTE = 1


def multiply_tiles(
    product: TileProduct, sums: Any, sums_stride: Any, rows: Any, rows_stride: Any, columns: Any
) -> tirx.Expr:
    """Return a call that adds a product to `sums`. The operands are pointers, and strides are in elements."""
    item_bytes = tvm.DataType(product.rows).bits // 8
    strides = [
        tirx.Cast("int64", stride) * tirx.const(size, "int64")
        for stride, size in ((sums_stride, 4), (rows_stride, item_bytes))
    ]
    return tirx.call_extern("int32", _MULTIPLY + product.name, sums, strides[0], rows, strides[1], columns)


def use_tiles(module: tvm.IRModule) -> tvm.IRModule:
    """Configure tiles around the loops that multiply them, and add the functions in LLVM's IR.

        for i in T.parallel(8):
            amx_32x32x4x64_tdpbusd(...)
    ->
        with T.attr("pragma_parallel_launch_point"):    # what follows is done by each thread
            tiles_32x32x64()
            for i in T.parallel(8):
                amx_32x32x4x64_tdpbusd(...)
            release_tiles()
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    calls = tile_calls(function.body)
    if not calls:
        return function
    products = {product.name: product for _, product in calls}
    body = _configured(function.body)
    texts = [_multiplying(product) for product in products.values()]
    configurations = {_configuration(product): product for product in products.values()}
    texts += [_configuring(product) for product in configurations.values()]
    for text in [*texts, _RELEASING]:
        body = AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(text), body)
    return function.with_body(body)


def tile_calls(statement: Any) -> list[tuple[Call, TileProduct]]:
    """Return all calls that multiply tiles, with their products."""
    found = []
    for call in find_all(statement, Call):
        name = call.args[0] if call.args else None
        if isinstance(name, StringImm) and str(name.value).startswith(_MULTIPLY):
            product = tile_product(str(name.value).removeprefix(_MULTIPLY))
            if product is not None:
                found.append((call, product))
    return found


def _configured(body: Any) -> Any:
    """Configure tiles around the outermost statements that need one configuration.

    Every thread has its own tiles, so a parallel loop may be such a statement, but not contain others.
    """
    chosen = list(_outermost(body))

    def configure(statement: Any) -> Any:
        if not any(statement.same_as(one) for one in chosen):
            return statement
        if isinstance(statement, SeqStmt):
            first, last = _used(statement)
            before, after = _calls_around(statement)
            each = list(statement.seq)
            return SeqStmt([*each[:first], before, *each[first : last + 1], after, *each[last + 1 :]])
        before, after = _calls_around(statement)
        inside = SeqStmt([before, statement, after])
        if isinstance(statement, For) and statement.kind == ForKind.PARALLEL:
            return AttrStmt(tirx.const(0), "pragma_parallel_launch_point", tirx.const(1), inside)
        return inside

    return tvm_ffi.structural_map(body, ((For, SeqStmt, Evaluate), configure))


def _outermost(statement: Any) -> Iterator[Any]:
    """Yield the outermost loops, sequences and calls below a statement that need one configuration."""
    configurations = {_configuration(product) for _, product in tile_calls(statement)}
    if not configurations:
        return
    match statement:
        case Evaluate():
            yield statement
        case For() if len(configurations) == 1 and not _has_parallel(statement.body):
            yield statement
        case SeqStmt():
            first, last = _used(statement)
            used = list(statement.seq)[first : last + 1]
            if len(configurations) == 1 and first < last and not any(map(_has_parallel, used)):
                yield statement
            else:
                for one in used:
                    yield from _outermost(one)
        case IfThenElse():
            yield from _outermost(statement.then_case)
            if statement.else_case is not None:
                yield from _outermost(statement.else_case)
        case _:
            yield from _outermost(statement.body)


def _used(sequence: SeqStmt) -> tuple[int, int]:
    """Return the positions of the first and the last statement of a sequence that multiply tiles."""
    places = [place for place, one in enumerate(sequence.seq) if tile_calls(one)]
    return places[0], places[-1]


def _has_parallel(body: Any) -> bool:
    return any(loop.kind == ForKind.PARALLEL for loop in find_all(body, For))


def _calls_around(statement: Any) -> tuple[Evaluate, Evaluate]:
    """Return the statements that configure the tiles of a statement, and that release them."""
    configure = _CONFIGURE + _configuration(tile_calls(statement)[0][1])
    first, last = (Evaluate(tirx.call_extern("int32", name)) for name in (configure, _RELEASE))
    return first, last


def _configuration(product: TileProduct) -> str:
    """Return a name of the tiles' sizes, in rows, sums in a row, and bytes of the rows along the depth."""
    return f"{product.tall}x{product.lanes}x{product.each * _item_bytes(product)}"


def _item_bytes(product: TileProduct) -> int:
    return tvm.DataType(product.rows).bits // 8


def _sums_tiles(product: TileProduct) -> list[tuple[int, int, int]]:
    """Return the number of each tile of sums, with its place from the top and from the left."""
    return [
        (SIDE * row + lane, row, lane)
        for row in range(len(product.row_tiles))
        for lane in range(len(product.lane_tiles))
    ]


def tile_configuration(product: TileProduct) -> bytes:
    """Return the 64 bytes that `ldtilecfg` reads (Intel's manual, table of the memory area of LDTILECFG)."""
    row_bytes, rows = [0] * 16, [0] * 16
    for tile, row, lane in _sums_tiles(product):
        row_bytes[tile], rows[tile] = 4 * product.lane_tiles[lane], product.row_tiles[row]
    for row, count in enumerate(product.row_tiles):
        row_bytes[_ROWS + row], rows[_ROWS + row] = product.each * _item_bytes(product), count
    for lane, count in enumerate(product.lane_tiles):
        row_bytes[_COLUMNS + lane], rows[_COLUMNS + lane] = 4 * count, product.each // product.column_depth
    return struct.pack("<2B14x16H16B", _PALETTE, 0, *row_bytes, *rows)


_ATTRIBUTES = 'attributes #0 = { nounwind noinline "target-features"="+amx-tile,+amx-int8,+amx-bf16" }\n'
_RELEASING = f"""
declare void @llvm.x86.tilerelease()
define linkonce_odr hidden i32 @{_RELEASE}() #0 {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
{_ATTRIBUTES}"""


def _configuring(product: TileProduct) -> str:
    """Return the function that configures the tiles of a product, in LLVM's IR."""
    name = _CONFIGURE + _configuration(product)
    values = ", ".join(f"i8 {byte}" for byte in tile_configuration(product))
    return f"""
@{name}_bytes = linkonce_odr hidden constant [64 x i8] [{values}], align 64
declare void @llvm.x86.ldtilecfg(ptr)
define linkonce_odr hidden i32 @{name}() #0 {{
  call void @llvm.x86.ldtilecfg(ptr @{name}_bytes)
  ret i32 0
}}
{_ATTRIBUTES}"""


def _multiplying(product: TileProduct) -> str:
    """Return the function that adds a product to sums, in LLVM's IR.

    In memory, a step's columns begin where the previous step's columns end.
    """
    tiles = _sums_tiles(product)
    rows, lanes = range(len(product.row_tiles)), range(len(product.lane_tiles))
    row_bytes, columns_stride = product.each * _item_bytes(product), 4 * product.lanes
    step_bytes = product.each // product.column_depth * columns_stride

    def move(instruction: str, tile: int, pointer: str, stride: str | int) -> str:
        return f"  call void @llvm.x86.{instruction}(i8 {tile}, ptr {pointer}, i64 {stride})"

    places = [
        line
        for tile, row, lane in tiles
        for line in (
            f"  %below{tile} = mul i64 %sums_stride, {row * TILE_ROWS}",
            f"  %row{tile} = getelementptr i8, ptr %sums, i64 %below{tile}",
            f"  %sums{tile} = getelementptr i8, ptr %row{tile}, i64 {lane * ROW_BYTES}",
        )
    ]
    loads = [
        line
        for row in rows
        for line in (
            f"  %down{row} = mul i64 %rows_stride, {row * TILE_ROWS}",
            f"  %first{row} = getelementptr i8, ptr %rows, i64 %down{row}",
            f"  %rows{row} = getelementptr i8, ptr %first{row}, i64 %along_rows",
            move("tileloadd64", _ROWS + row, f"%rows{row}", "%rows_stride"),
        )
    ]
    loads += [
        line
        for lane in lanes
        for line in (
            f"  %columns{lane} = getelementptr i8, ptr %step_columns, i64 {lane * ROW_BYTES}",
            move("tileloadd64", _COLUMNS + lane, f"%columns{lane}", columns_stride),
        )
    ]
    products = [
        f"  call void @llvm.x86.{product.instruction}(i8 {tile}, i8 {_ROWS + row}, i8 {_COLUMNS + lane})"
        for tile, row, lane in tiles
    ]
    lines = [
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
        f"declare void @llvm.x86.{product.instruction}(i8 immarg, i8 immarg, i8 immarg)",
        f"define linkonce_odr hidden i32 @{_MULTIPLY}{product.name}"
        "(ptr %sums, i64 %sums_stride, ptr %rows, i64 %rows_stride, ptr %columns) #0 {",
        "start:",
        *places,
        *(move("tileloadd64", tile, f"%sums{tile}", "%sums_stride") for tile, _, _ in tiles),
        "  br label %loop",
        "loop:",
        "  %step = phi i64 [0, %start], [%next, %loop]",
        f"  %along_rows = mul i64 %step, {row_bytes}",
        f"  %along_columns = mul i64 %step, {step_bytes}",
        "  %step_columns = getelementptr i8, ptr %columns, i64 %along_columns",
        *loads,
        *products,
        "  %next = add i64 %step, 1",
        f"  %goes_on = icmp ult i64 %next, {product.steps}",
        "  br i1 %goes_on, label %loop, label %end",
        "end:",
        *(move("tilestored64", tile, f"%sums{tile}", "%sums_stride") for tile, _, _ in tiles),
        "  ret i32 0",
        "}",
        _ATTRIBUTES,
    ]
    return "\n".join(lines)
