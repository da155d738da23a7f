"""Use AMX's instructions, which work on tiles that a thread has to configure.

Sums stay in tiles through all loops along the reduction.

A kernel calls functions in LLVM's IR. They name the tile registers, because LLVM would otherwise configure
tiles in every function that uses them, and this sets all tiles to zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm
from tvm.tirx import AttrStmt, BufferStore, Evaluate, For, ForKind, IfThenElse, PrimFunc, SeqStmt

from compiler.codegen.rewrite import rewrite_prim_funcs, with_body
from compiler.tir_nodes import contains, find_all
from search.sketches.tile_products import ROW_BYTES, SIDE, TILE_ROWS, TileProduct, tile_product

# The prefix of calls that add a product to sums in memory. Three calls replace each: functions with these
# prefixes load sums into tiles, add products to them, and store them.
_MULTIPLY = "tunefarm_multiply_"
_LOAD, _ADD, _STORE = "tunefarm_load_", "tunefarm_add_", "tunefarm_store_"
# The prefix of functions that configure tiles, and the function that releases them.
_CONFIGURE, _RELEASE = "tunefarm_tiles_", "tunefarm_release_tiles"
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
            for k in range(3):
                multiply_amx_32x32x64_tdpbusd(sums[i], ...)
    ->
        with T.attr("pragma_parallel_launch_point"):    # what follows is done by each thread
            tiles_32x32x64()
            for i in T.parallel(8):
                load_amx_32x32x64_tdpbusd(sums[i], ...)
                for k in range(3):
                    add_amx_32x32x64_tdpbusd(...)
                store_amx_32x32x64_tdpbusd(sums[i], ...)
            release_tiles()
    """
    return rewrite_prim_funcs(module, _rewrite)


def _rewrite(function: PrimFunc) -> PrimFunc:
    products = {product.name: product for _, product in tile_calls(function.body)}
    if not products:
        return function
    body = _sums_in_tiles(_configured(function.body))
    texts = [text for product in products.values() for text in _functions(product)]
    configurations = {_configuration(product): product for product in products.values()}
    texts += [_configuring(product) for product in configurations.values()]
    for text in [*texts, _RELEASING]:
        body = AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(text), body)
    return with_body(function, body)


def tile_calls(
    statement: Any, prefixes: Sequence[str] = (_MULTIPLY, _LOAD, _ADD, _STORE)
) -> list[tuple[Call, TileProduct]]:
    """Return all calls that multiply, load or store tiles, with their products."""
    found: list[tuple[Call, TileProduct]] = []
    texts = {str(each.value) for each in find_all(statement, StringImm)}
    if not any(text.startswith(tuple(prefixes)) for text in texts):
        return found
    for call in find_all(statement, Call):
        name = call.args[0] if call.args else None
        if isinstance(name, StringImm):
            for prefix in prefixes:
                product = tile_product(str(name.value).removeprefix(prefix))
                if product is not None:
                    found.append((call, product))
    return found


def _sums_in_tiles(body: Any) -> Any:
    """Load sums before the outermost loops and sequences that add only to them, and store them after these.

        multiply(s, a, b)
    ->
        load(s); add(a, b); store(s)

        load(s); add(a, b); store(s); load(s); add(c, d); store(s)
    ->
        load(s); add(a, b); add(c, d); store(s)

        for k in range(3): load(s); add(a[k], b); store(s)
    ->
        load(s)
        for k in range(3): add(a[k], b)
        store(s)
    """
    return tvm_ffi.structural_map(body, [(Evaluate, _split), (SeqStmt, _joined), (For, _moved_out)])


def _split(statement: Evaluate) -> Any:
    found = tile_calls(statement, [_MULTIPLY])
    if not found:
        return statement
    ((call, product),) = found
    sums, operands = call.args[1:3], call.args[3:]
    return SeqStmt(
        [
            Evaluate(tirx.call_extern("int32", prefix + product.name, *arguments))
            for prefix, arguments in ((_LOAD, sums), (_ADD, operands), (_STORE, sums))
        ]
    )


def _joined(sequence: SeqStmt) -> Any:
    joined: list[Any] = []
    for one in sequence.seq:
        for part in one.seq if isinstance(one, SeqStmt) else [one]:
            stored = _sums(joined[-1], _STORE) if joined else None
            if stored is not None and tvm_ffi.structural_equal(stored, _sums(part, _LOAD)):
                joined.pop()
            else:
                joined.append(part)
    return SeqStmt(joined)


def _moved_out(loop: For) -> Any:
    if not isinstance(loop.body, SeqStmt) or loop.kind == ForKind.PARALLEL:
        return loop
    first, *inside, last = loop.body.seq
    loaded = _sums(first, _LOAD)
    is_alone = len(tile_calls(loop.body, [_LOAD])) == 1 and _sums(last, _STORE) is not None
    if loaded is None or not is_alone or find_all(loop.body, BufferStore):
        return loop
    if contains(find_all(Evaluate(loaded), tirx.Var), loop.loop_var):
        return loop
    body = inside[0] if len(inside) == 1 else SeqStmt(inside)
    return SeqStmt([first, For(loop.loop_var, loop.min, loop.extent, loop.kind, body), last])


def _sums(statement: Any, prefix: str) -> Any:
    """Return the pointer to the sums that a statement loads or stores; None for others."""
    found = tile_calls(statement, [prefix]) if isinstance(statement, Evaluate) else []
    return found[0][0].args[1] if found else None


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


def _functions(product: TileProduct) -> list[str]:
    """Return the functions, in LLVM's IR, that load sums into tiles, that add a product to them, and that
    store them.
    """
    tiles = _sums_tiles(product)
    places = [
        line
        for tile, row, lane in tiles
        for line in (
            f"  %below{tile} = mul i64 %sums_stride, {row * TILE_ROWS}",
            f"  %row{tile} = getelementptr i8, ptr %sums, i64 %below{tile}",
            f"  %sums{tile} = getelementptr i8, ptr %row{tile}, i64 {lane * ROW_BYTES}",
        )
    ]
    sums = "ptr %sums, i64 %sums_stride"
    loads = [_move("tileloadd64", tile, f"%sums{tile}", "%sums_stride") for tile, _, _ in tiles]
    stores = [_move("tilestored64", tile, f"%sums{tile}", "%sums_stride") for tile, _, _ in tiles]
    operands = "ptr %rows, i64 %rows_stride, ptr %columns"
    return [
        _function(_LOAD + product.name, sums, ["tileloadd64"], [*places, *loads]),
        _function(_ADD + product.name, operands, ["tileloadd64", product.instruction], _step(product)),
        _function(_STORE + product.name, sums, ["tilestored64"], [*places, *stores]),
    ]


def _step(product: TileProduct) -> list[str]:
    """Return the instructions that add a product. Each operand is loaded just before it is used first."""
    lines: list[str] = []
    for tile, row, lane in _sums_tiles(product):
        if lane == 0:
            lines += [
                f"  %down{row} = mul i64 %rows_stride, {row * TILE_ROWS}",
                f"  %rows{row} = getelementptr i8, ptr %rows, i64 %down{row}",
                _move("tileloadd64", _ROWS + row, f"%rows{row}", "%rows_stride"),
            ]
        if row == 0:
            lines += [
                f"  %columns{lane} = getelementptr i8, ptr %columns, i64 {lane * ROW_BYTES}",
                _move("tileloadd64", _COLUMNS + lane, f"%columns{lane}", 4 * product.lanes),
            ]
        operands = f"i8 {tile}, i8 {_ROWS + row}, i8 {_COLUMNS + lane}"
        lines.append(f"  call void @llvm.x86.{product.instruction}({operands})")
    return lines


def _move(instruction: str, tile: int, pointer: str, stride: str | int) -> str:
    return f"  call void @llvm.x86.{instruction}(i8 {tile}, ptr {pointer}, i64 {stride})"


def _function(name: str, parameters: str, instructions: list[str], lines: list[str]) -> str:
    types = {"tileloadd64": "i8 immarg, ptr, i64", "tilestored64": "i8 immarg, ptr, i64"}
    declared = [
        f"declare void @llvm.x86.{one}({types.get(one, 'i8 immarg, i8 immarg, i8 immarg')})"
        for one in instructions
    ]
    head = f"define linkonce_odr hidden i32 @{name}({parameters}) #0 {{"
    return "\n".join([*declared, head, "start:", *lines, "  ret i32 0", "}", _ATTRIBUTES])
