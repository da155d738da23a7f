"""TIR kernels that calibration times. Each does `steps` steps and stores its result, or LLVM would remove the
computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - as in TVM

from compiler.codegen.bfloat16_instructions import bfloat16_dot, import_functions
from compiler.codegen.tile_instructions import multiply_tiles
from compiler.lowering.vnni_dot_products import BYTES_SINCE_LLVM
from core.profile import FLOAT32
from search.sketches.tile_products import ROW_BYTES, TileProduct

# Dependent operations in one iteration of the loops of `cycle_chain` and `dependent_multiply_adds`.
CHAINED, WAITED = 64, 8
# The number of independent vector loads in one iteration.
SIDE_BY_SIDE = 8
# A working set that fits the L1 cache and reaches its highest rate.
SMALL_BYTES = 4 << 10
# Lanes are gathered from rows of this many elements. With a power of two, the rows would share cache sets.
ROW_ELEMENTS, ROW_COLUMNS, GATHERED = 68, 64, 4
# A line of a cache, in words of 32 bits.
LINE_WORDS = 16
# The tile of the kernel that multiplies bytes as 32-bit integers.
TILE_STEPS, TILE_ROWS, TILE_COLUMNS = 64, 4, 2


def build_module(body: Callable[[], None]) -> tvm.IRModule:
    """Return a module whose `main` consists of the statements that `body` emits."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        body()
    return import_functions(tvm.IRModule({"main": builder.get()}))


@contextmanager
def gpu_threads(blocks: int, threads: int) -> Iterator[Any]:
    """Bind loops to a GPU's blocks and threads; yield the thread's index in the grid."""
    with (
        T.thread_binding(blocks, thread="blockIdx.x") as block,
        T.thread_binding(threads, thread="threadIdx.x") as thread,
    ):
        yield block * threads + thread


def _steps_argument() -> Any:
    return T.arg("steps", T.int64())


def _vector(buffer: Any, start: Any, lanes: int) -> Any:
    return buffer[T.ramp(start, 1, lanes)]


def _accumulators(result: Any, dtype: str, lanes: int, count: int, start: Any = 0) -> list[Any]:
    """Load `count` accumulators into registers, from `start` on. Their values differ, because LLVM would
    compute equal ones once.
    """
    sums = [T.alloc_buffer((lanes,), dtype, scope="local") for _ in range(count)]
    for i, one in enumerate(sums):
        T.buffer_store(one, _vector(result, start + i * lanes, lanes), [T.ramp(0, 1, lanes)])
    return sums


def _store(result: Any, sums: Sequence[Any], lanes: int, start: Any = 0) -> None:
    for i, one in enumerate(sums):
        T.buffer_store(result, _vector(one, 0, lanes), [T.ramp(start + i * lanes, 1, lanes)])


def cycle_chain() -> None:
    """Add and xor integers. Each operation depends on the previous one, so a step takes CHAINED cycles."""
    source = T.arg("source", T.buffer((2,), "uint32"))
    result = T.arg("result", T.buffer((1,), "uint32"))
    steps = _steps_argument()
    value = T.alloc_buffer((1,), "uint32", scope="local")
    T.buffer_store(value, result[0], [0])
    with T.serial(steps):
        chained = value[0]
        for _ in range(CHAINED // 2):
            chained = T.bitwise_xor(chained + source[0], source[1])
        T.buffer_store(value, chained, [0])
    T.buffer_store(result, value[0], [0])


def multiply_adds(
    factor: str, total: str, lanes: int, total_lanes: int, chains: int, step: Callable[[Any, Any, Any], Any]
) -> None:
    """Multiply and add in `chains` independent accumulators, with all operands in registers."""
    source = T.arg("source", T.buffer((2 * lanes,), factor))
    result = T.arg("result", T.buffer((chains * total_lanes,), total))
    steps = _steps_argument()
    sums = _accumulators(result, total, total_lanes, chains)
    _accumulate(steps, source, sums, lanes, total_lanes, step)
    _store(result, sums, total_lanes)


def _accumulate(
    steps: Any,
    source: Any,
    sums: Sequence[Any],
    lanes: int,
    total_lanes: int,
    step: Callable[[Any, Any, Any], Any],
) -> None:
    """Add the product of the two vectors in `source` to each accumulator, `steps` times."""
    with T.serial(steps):
        for one in sums:
            added = step(
                _vector(one, 0, total_lanes), _vector(source, 0, lanes), _vector(source, lanes, lanes)
            )
            T.buffer_store(one, added, [T.ramp(0, 1, total_lanes)])


def multiply_adds_on_all_cores(cores: int, lanes: int, chains: int) -> tvm.IRModule:
    """Return a kernel that runs `multiply_adds` for float32 on several cores at a time."""

    def body() -> None:
        source = T.arg("source", T.buffer((2 * lanes,), FLOAT32))
        result = T.arg("result", T.buffer((cores * chains * lanes,), FLOAT32))
        steps = _steps_argument()
        with T.parallel(cores) as core:
            start = core * chains * lanes
            sums = _accumulators(result, FLOAT32, lanes, chains, start)
            _accumulate(steps, source, sums, lanes, lanes, multiply_add)
            _store(result, sums, lanes, start)

    return build_module(body)


def multiply_add(total: Any, factor: Any, summand: Any) -> Any:
    return total * factor + summand


def _vnni(total: Any, rows: Any, columns: Any) -> Any:
    sums = f"int32x{total.ty.dtype.lanes}"
    if tvm.get_global_func("target.llvm_version_major")() < BYTES_SINCE_LLVM:
        rows, columns = (T.reinterpret(one, dtype=sums) for one in (rows, columns))
    intrinsic = T.llvm_lookup_intrinsic_id(f"llvm.x86.avx512.vpdpbusd.{32 * total.ty.dtype.lanes}")
    return T.call_llvm_pure_intrin(intrinsic, total, rows, columns, dtype=sums)


def _sdot(total: Any, rows: Any, columns: Any) -> Any:
    intrinsic = T.llvm_lookup_intrinsic_id("llvm.aarch64.neon.sdot.v4i32.v16i8")
    return T.call_llvm_pure_intrin(intrinsic, total, rows, columns, dtype="int32x4")


def bfloat16_dot_product(total: Any, rows: Any, columns: Any) -> Any:
    """Multiply pairs of bfloat16 in vectors of float32."""
    sums = int(total.ty.dtype.lanes)
    rows, columns = (T.reinterpret(one, dtype=f"int32x{sums}") for one in (rows, columns))
    return bfloat16_dot(total, rows, columns, sums)


# Dot products of bytes: the CPU feature as Linux names it, and the instruction.
DOT_PRODUCTS = (("avx512_vnni", _vnni), ("avx_vnni", _vnni), ("asimddp", _sdot))


def widened_multiply_adds(lanes: int) -> None:
    """Multiply bytes as 32-bit integers, for processors without a dot product of bytes."""
    rows = T.arg("rows", T.buffer((TILE_STEPS * TILE_ROWS,), "int8"))
    columns = T.arg("columns", T.buffer((TILE_STEPS * TILE_COLUMNS * lanes,), "int8"))

    def step(total: Any, row: Any, column: Any) -> Any:
        narrow = _vector(columns, column * lanes, lanes)
        return total + T.broadcast(T.cast(rows[row], "int32"), lanes) * T.cast(narrow, f"int32x{lanes}")

    _add_to_tile(lanes, step)


def dot_products(factor: str, lanes: int, total_lanes: int, step: Callable[[Any, Any, Any], Any]) -> None:
    """Add dot products to a tile of sums. All operands come from memory: if a step doesn't add by its
    multiplication, LLVM would hoist multiplications of registers.
    """
    rows = T.arg("rows", T.buffer((TILE_STEPS * TILE_ROWS * lanes,), factor))
    columns = T.arg("columns", T.buffer((TILE_STEPS * TILE_COLUMNS * lanes,), factor))
    _add_to_tile(
        total_lanes,
        lambda total, row, column: step(
            total, _vector(rows, row * lanes, lanes), _vector(columns, column * lanes, lanes)
        ),
    )


def tile_products(product: TileProduct) -> None:
    """Add a product of tiles to sums in memory. The sizes are in bytes, because its types don't matter."""
    item_bytes = ROW_BYTES // product.each
    sizes = product.tall * product.depth, product.lanes * product.depth
    rows, columns = (
        T.arg(name, T.buffer((size * item_bytes,), "int8"))
        for name, size in zip(("rows", "columns"), sizes, strict=True)
    )
    result = T.arg("result", T.buffer((product.tall * product.lanes,), "int32"))
    steps = _steps_argument()
    with T.serial(steps):
        sums, data, packed = result.access_ptr("rw"), rows.access_ptr("r"), columns.access_ptr("r")
        T.evaluate(multiply_tiles(product, sums, product.lanes, data, product.depth, packed))


def _add_to_tile(lanes: int, step: Callable[[Any, Any, Any], Any]) -> None:
    """Set each sum of a tile to `step(sum, row, column)`, where the others are positions of operands."""
    count = TILE_ROWS * TILE_COLUMNS
    result = T.arg("result", T.buffer((count * lanes,), "int32"))
    steps = _steps_argument()
    sums = _accumulators(result, "int32", lanes, count)
    with T.serial(steps), T.serial(TILE_STEPS) as k:
        for i, one in enumerate(sums):
            row, column = k * TILE_ROWS + i // TILE_COLUMNS, k * TILE_COLUMNS + i % TILE_COLUMNS
            T.buffer_store(one, step(_vector(one, 0, lanes), row, column), [T.ramp(0, 1, lanes)])
    _store(result, sums, lanes)


def dependent_multiply_adds(lanes: int) -> None:
    """Multiply and add in one accumulator. The factors come from memory: LLVM would hoist a multiplication
    of registers."""
    source = T.arg("source", T.buffer((SMALL_BYTES // 4,), FLOAT32))
    result = T.arg("result", T.buffer((lanes,), FLOAT32))
    steps = _steps_argument()
    (total,) = _accumulators(result, FLOAT32, lanes, 1)
    with T.serial(steps), T.serial(SMALL_BYTES // 4 // (WAITED * lanes)) as i:
        for j in range(WAITED):
            product = _vector(source, (i * WAITED + j) * lanes, lanes) * _vector(source, 0, lanes)
            T.buffer_store(total, _vector(total, 0, lanes) + product, [T.ramp(0, 1, lanes)])
    _store(result, [total], lanes)


def gathers(lanes: int) -> None:
    """Add up vectors whose lanes are loaded from different rows."""
    source = T.arg("source", T.buffer((GATHERED * lanes * ROW_ELEMENTS,), FLOAT32))
    result = T.arg("result", T.buffer((GATHERED * lanes,), FLOAT32))
    steps = _steps_argument()
    sums = _accumulators(result, FLOAT32, lanes, GATHERED)
    with T.serial(steps), T.serial(ROW_COLUMNS) as column:
        for i, one in enumerate(sums):
            gathered = source[T.ramp(column + i * lanes * ROW_ELEMENTS, ROW_ELEMENTS, lanes)]
            T.buffer_store(one, _vector(one, 0, lanes) + gathered, [T.ramp(0, 1, lanes)])
    _store(result, sums, lanes)


def stream(lanes: int, cores: int) -> None:
    """Read the whole source once per step. Each core reads its own part."""
    length = T.int64()
    handle = T.arg("source", T.handle())
    result = T.arg("result", T.buffer((cores * SIDE_BY_SIDE * lanes,), "int32"))
    steps = _steps_argument()
    source = T.match_buffer(handle, (length,), "int32")
    blocks = T.floordiv(length, cores * SIDE_BY_SIDE * lanes)
    with T.parallel(cores) if cores > 1 else T.serial(1) as core:
        sums = [T.alloc_buffer((lanes,), "int32", scope="local") for _ in range(SIDE_BY_SIDE)]
        for one in sums:
            T.buffer_store(one, T.broadcast(T.int32(0), lanes), [T.ramp(0, 1, lanes)])
        with T.serial(steps), T.serial(blocks) as block:
            for i, one in enumerate(sums):
                start = ((core * blocks + block) * SIDE_BY_SIDE + i) * lanes
                loaded = _vector(one, 0, lanes) + _vector(source, start, lanes)
                T.buffer_store(one, loaded, [T.ramp(0, 1, lanes)])
        _store(result, sums, lanes, core * SIDE_BY_SIDE * lanes)


def parallel_stores(cores: int) -> None:
    """Store one number per core: this times the launch of the threads."""
    result = T.arg("result", T.buffer((cores * 16,), "int32"))
    with T.parallel(cores) as core:
        T.buffer_store(result, core, [core * 16])


def rewriting_kernel() -> tvm.IRModule:
    """Return a kernel that writes the lines of a cache in a tensor of int32 again, each thread a contiguous
    part. Its second argument is 0, which LLVM doesn't know, so the values stay.
    """

    def rewrite() -> None:
        length = T.int64()
        words = T.match_buffer(T.arg("words", T.handle()), (length,), "int32")
        zero = T.arg("zero", T.int32())
        with T.parallel(T.floordiv(length, LINE_WORDS)) as line, T.serial(LINE_WORDS) as i:
            T.buffer_store(words, words[line * LINE_WORDS + i] ^ zero, [line * LINE_WORDS + i])

    return build_module(rewrite)
