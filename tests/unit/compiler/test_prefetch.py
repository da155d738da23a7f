"""Loops prefetch the rows of large operands, and keep their sums in registers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.ir import TensorLoad

from compiler import tir_nodes
from compiler.codegen import prefetch
from compiler.codegen.prefetch import AHEAD_BYTES, LINE_BYTES, MIN_OPERAND_BYTES
from tests.register_tiles import compile_tile, flattened, padded_stencil, register_tile, unrolled

NATIVE = tvm.target.Target("llvm")
ROWS, VECTOR = 4, 32
CALL = "call void @llvm.prefetch"


def _depth(num_bytes: int, item: int = 4) -> int:
    return num_bytes // (VECTOR * item)


@pytest.mark.parametrize(
    ("num_bytes", "dtype", "lines"),
    [
        pytest.param(MIN_OPERAND_BYTES, "float32", VECTOR * 4 // LINE_BYTES, id="as large as a cache"),
        pytest.param(MIN_OPERAND_BYTES - VECTOR * 4, "float32", 0, id="smaller"),
        pytest.param(MIN_OPERAND_BYTES, "float64", VECTOR * 8 // LINE_BYTES, id="of another type"),
    ],
)
def test_every_line_of_a_row_is_prefetched_once(num_bytes: int, dtype: str, lines: int) -> None:
    depth = _depth(num_bytes, np.dtype(dtype).itemsize)
    built = compile_tile(register_tile(ROWS, VECTOR, depth, dtype), NATIVE)
    assert built.mod.inspect_source("ll").count(CALL) == lines
    rng = np.random.default_rng(0)
    data, weight = rng.uniform(size=(ROWS, depth)), rng.uniform(size=(depth, VECTOR))
    result = tvm.runtime.tensor(np.zeros((ROWS, VECTOR), dtype))
    built["main"](tvm.runtime.tensor(data.astype(dtype)), tvm.runtime.tensor(weight.astype(dtype)), result)
    np.testing.assert_allclose(result.numpy(), data @ weight, rtol=1e-5)


def test_sums_stay_in_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = register_tile(ROWS, VECTOR, _depth(MIN_OPERAND_BYTES))
    prefetched = compile_tile(scheduled, NATIVE).mod.inspect_source("ll")
    monkeypatch.setattr(prefetch, "MIN_OPERAND_BYTES", 2 * MIN_OPERAND_BYTES)
    plain = compile_tile(scheduled, NATIVE).mod.inspect_source("ll")
    assert (CALL in prefetched, CALL in plain) == (True, False)
    assert prefetched.count("store <") == plain.count("store <")


def test_stores_that_repeat_loads_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def find_all(expression: Any, *kinds: type) -> list[Any]:
        if kinds == (TensorLoad,):
            searched.append(expression)
        return tir_nodes.find_all(expression, *kinds)

    monkeypatch.setattr(prefetch, "find_all", find_all)
    product = unrolled(flattened(register_tile(ROWS, VECTOR, _depth(MIN_OPERAND_BYTES))))
    text = prefetch.prefetch_operands(product)["main"].script()
    assert text.count("weight_1[T.Ramp(") == ROWS
    assert text.count(prefetch._NAME) == VECTOR * 4 // LINE_BYTES
    assert len(searched) == 1


def test_rows_are_prefetched_in_the_loop_that_moves_along_them() -> None:
    flat = flattened(register_tile(ROWS, VECTOR, _depth(MIN_OPERAND_BYTES)))
    text = prefetch.prefetch_operands(flat)["main"].script()
    assert (
        f"""
        for i in T.unroll({ROWS}):
            product_1[i * 32:i * 32 + 32] = product_1[T.Ramp(i * 32, 1, 32)] + T.Broadcast(data_1[i * 256 + k], 32) * weight_1[T.Ramp(k * 32, 1, 32)]
        T.call_extern("int32", "tunefarm_prefetch", T.address_of(weight_1[k * 32 + {AHEAD_BYTES // 4}]))
        T.call_extern("int32", "tunefarm_prefetch", T.address_of(weight_1[k * 32 + {(AHEAD_BYTES + LINE_BYTES) // 4}]))
"""  # noqa: E501
        in text
    )


def test_rows_that_the_previous_iteration_read_are_not_prefetched() -> None:
    """A tile of four rows reads six. The tile before has read two of them. Each row is a line."""
    tile, columns = 4, LINE_BYTES // 4
    stencil = unrolled(flattened(padded_stencil(MIN_OPERAND_BYTES // LINE_BYTES, columns, tile)))
    assert prefetch.prefetch_operands(stencil)["main"].script().count("address_of(data_1[") == tile


def test_rows_that_an_earlier_iteration_of_a_fused_loop_read_are_not_prefetched() -> None:
    """A tile of two lines reads three. The tile to its left has read the first."""
    start = "f // 8 * 1024 + f % 8 * 32"
    reads = "\n".join(
        f"        sums[0:16] = sums[T.Ramp(0, 1, 16)] + data[T.Ramp({start} + {at}, 1, 16)]"
        for at in (0, 16, 32)
    )
    module = tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def main(data: T.Buffer(({MIN_OPERAND_BYTES},), "float32"), sums: T.Buffer((16,), "float32")):
    for f in range(64):
{reads}
""")
    found = prefetch.prefetch_operands(tvm.IRModule({"main": module}))["main"]
    assert found.script().count(f'"{prefetch._NAME}"') == 2


def test_bytes_that_a_dot_product_broadcasts_are_not_prefetched() -> None:
    """They are a sixteenth of a line."""
    module = tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def main(data: T.Buffer(({2 * MIN_OPERAND_BYTES},), "int8"), sums: T.Buffer((4,), "int32")):
    for k in range(512):
        sums[0:4] = sums[T.Ramp(0, 1, 4)] + T.Broadcast(T.reinterpret("int32", data[T.Ramp(k * 4, 1, 4)]), 4)
""")
    found = prefetch.prefetch_operands(tvm.IRModule({"main": module}))["main"]
    assert prefetch._NAME not in found.script()


def _repeated(loops: dict[str, int], at: str) -> str:
    """Return the code of loops that add lines of `b` at an index and don't always move along them."""
    nest = "".join(
        f"{'    ' * depth}for {name} in range({extent}):\n"
        for depth, (name, extent) in enumerate(loops.items(), 1)
    )
    indent = "    " * (len(loops) + 1)
    module = tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def main(b: T.Buffer(({MIN_OPERAND_BYTES},), "float32"), c: T.Buffer((16,), "float32")):
{nest}{indent}c[0:16] = c[T.Ramp(0, 1, 16)] + b[T.Ramp({at}, 1, 16)]
""")
    return str(prefetch.prefetch_operands(tvm.IRModule({"main": module}))["main"].script())


def _addresses(text: str) -> list[str]:
    return re.findall(r"address_of\(b\[(.*)\]\)\)", text)


def test_sums_in_a_large_buffer_are_not_prefetched() -> None:
    source = f"""
@T.prim_func(s_tir=True)
def main(a: T.Buffer(({MIN_OPERAND_BYTES},), "float32"), c: T.Buffer(({MIN_OPERAND_BYTES},), "float32")):
    for i in range(64):
        c[T.Ramp(i * 16, 1, 16)] = c[T.Ramp(i * 16, 1, 16)] + a[T.Ramp(i * 16, 1, 16)]
"""
    text = prefetch.prefetch_operands(tvm.IRModule({"main": tvm.script.from_source(source)}))["main"].script()
    assert re.findall(rf"{prefetch._NAME}.*address_of\((\w)\[", text) == ["a"]


@pytest.mark.parametrize(
    ("rows", "depth"),
    [pytest.param(8, 16, id="two lines a row"), pytest.param(6, 16, id="three a row, the last two beyond")],
)
def test_iterations_that_repeat_reads_share_the_prefetches(rows: int, depth: int) -> None:
    text = _repeated({"i": rows, "k": depth}, "k * 16")
    lines = [
        (eval(at, {"i": i}) * 4 - AHEAD_BYTES) // LINE_BYTES for i in range(rows) for at in _addresses(text)
    ]
    assert lines == list(range(rows * -(-depth // rows)))
    assert "if " not in text


def test_iterations_prefetch_nothing_after_the_last_line() -> None:
    text = _repeated({"i": 8, "k": 4}, "k * 16")
    assert len(_addresses(text)) == 1
    assert "if i < 4:" in text


def test_iterations_of_several_loops_share_the_prefetches() -> None:
    """Six iterations of two loops read twelve lines, which are four groups of three."""
    text = _repeated({"i": 3, "j": 2, "m": 4, "k": 3}, "m * 512 + k * 16")
    found = [eval(at, {"i": i, "j": j}) for i in range(3) for j in range(2) for at in _addresses(text)]
    assert found == [AHEAD_BYTES // 4 + m * 512 + k * 16 for m in range(4) for k in range(3)]


@pytest.mark.parametrize(
    ("loops", "at"),
    [
        pytest.param({"i": 8, "k": 512}, "k * 16", id="more than the L1 cache keeps"),
        pytest.param({"i": 2, "k": 160}, "k * 16", id="more than one iteration should prefetch"),
        pytest.param({"m": 8, "k": 16}, "m * 256 + k * 16", id="no reads are repeated"),
    ],
)
def test_other_loops_prefetch_what_they_read(loops: dict[str, int], at: str) -> None:
    assert _addresses(_repeated(loops, at)) == [f"{at} + {AHEAD_BYTES // 4}"]
