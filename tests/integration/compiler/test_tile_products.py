"""AMX's products of tiles are right. Without AMX, an emulator executes the instructions (tests/amx)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, tirx, topi
from tvm.tirx import AttrStmt, Evaluate, For, ForKind, SeqStmt

from compiler.codegen.compilation import compile_functions
from compiler.codegen.tile_instructions import multiply_tiles, tile_configuration, use_tiles
from compiler.lowering.trace import apply_trace, lower
from compiler.measuring.calibration import _Calibration
from compiler.measuring.rounding import Rounding
from compiler.packaging.artifact import instructions_of
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target
from compiler.tir_nodes import find_all
from core.device import Device
from search.dag import Buffer, BufferRole
from search.programs.annotate import sample
from search.programs.program import Program
from search.rules.space import generate
from search.sketches.tile_products import (
    MAX_LANES,
    MAX_ROWS,
    ROW_BYTES,
    SUMS,
    TILE_ROWS,
    TileProduct,
    fitting_product,
    tile_product,
)
from tests.amx import emulator
from tests.marks import slow_lane_except

Array = NDArray[Any]
executes_tiles = pytest.mark.skipif(emulator.obstacle() is not None, reason=f"{emulator.obstacle()}")
HALVES = ("bfloat16", "bfloat16", "float32")


def _device(mcpu: str, vector_bytes: int, *features: str, **target: Any) -> Device:
    attributes = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu, "num-cores": 2, **target}
    return replace(
        detect_device(),
        triple="x86_64-linux-gnu",
        mcpu=mcpu,
        features=(*emulator.FEATURES, *features),
        vector_bytes=vector_bytes,
        target=json.dumps(attributes),
    )


SAPPHIRE_RAPIDS = _device("sapphirerapids", 64, "avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16")
# Programs for it run here, with AMX's instructions emulated.
EMULATED = _device("haswell", 32, "avx", "avx2", "fma", mattr=["+amx-int8", "+amx-bf16"])


def _matmul(rows: int, lanes: int, depth: int, *dtypes: str, strides: int = 1) -> tvm.IRModule:
    """Return a product, after which its sums are scaled by lane and shifted, as requantization does."""
    a = te.placeholder((rows, depth), dtypes[0], name="a")
    b = te.placeholder((depth, lanes), dtypes[1], name="b")
    scales = te.placeholder((lanes,), "float32", name="scales")
    k = te.reduce_axis((0, depth), name="k")
    sums = te.compute(
        (rows, lanes),
        lambda i, j: te.sum(a[i, k].astype(dtypes[2]) * b[k, j].astype(dtypes[2]), k),
        name="matmul",
    )
    scaled = te.compute(
        (rows, lanes), lambda i, j: sums[i, j].astype("float32") * scales[j] - 3.0, name="scaled"
    )
    return _module([a, b, scales, scaled])


def _conv(size: int, channels: int, outputs: int, kernel: int, stride: int, *dtypes: str) -> tvm.IRModule:
    """Return a convolution with channels last, padding and a rectifier."""
    a = te.placeholder((1, size, size, channels), dtypes[0], name="a")
    b = te.placeholder((kernel, kernel, channels, outputs), dtypes[1], name="b")
    sums = topi.nn.conv2d(a, b, stride, kernel // 2, 1, "NHWC", "HWIO", out_dtype=dtypes[2])
    return _module([a, b, topi.nn.relu(sums)])


def _module(tensors: Sequence[te.Tensor]) -> tvm.IRModule:
    function = te.create_prim_func(list(tensors)).with_attr("tirx.noalias", True)
    return tvm.IRModule({"main": function.with_attr("layout_free_buffers", [1])})


# The last tiles of rows, lanes and depth are partial in most of them.
CASES = {
    "tdpbusd": _matmul(50, 40, 96, "uint8", "int8", "int32"),
    "whole tiles": _matmul(64, 64, 256, "uint8", "int8", "int32"),
    "tdpbssd": _matmul(21, 24, 80, "int8", "int8", "int32"),
    "tdpbsud": _matmul(12, 16, 64, "int8", "uint8", "int32"),
    "tdpbuud": _matmul(32, 32, 64, "uint8", "uint8", "int32"),
    "tdpbf16ps": _matmul(50, 40, 96, *HALVES),
    "convolution": _conv(9, 32, 24, 3, 1, "uint8", "int8", "int32"),
    "convolution of bfloat16": _conv(9, 16, 24, 3, 1, *HALVES),
    "every second row": _conv(14, 32, 24, 3, 2, "uint8", "int8", "int32"),
    "four channels": _conv(14, 4, 24, 7, 2, "uint8", "int8", "int32"),
    "four channels of bfloat16": _conv(14, 4, 24, 5, 1, *HALVES),
}


def _programs(module: tvm.IRModule, device: Device, seed: int = 0) -> list[Program]:
    """Return a program of every sketch that multiplies tiles."""
    rng = np.random.default_rng(seed)
    return [
        sample(sketch, 8, rng).program(0)
        for sketch in generate(read_dag(module), device)
        if any(stage.intrinsic.startswith("amx_") for stage in sketch.stages)
    ]


def _compiled(module: tvm.IRModule, program: Program, device: Device) -> Any:
    """Compile a program with all passes that candidates and models have."""
    scheduled = apply_trace(module, lower(module, program, device))
    return compile_functions(scheduled, parse_target(device.target), check_arguments=True)


def _inputs(module: tvm.IRModule, seed: int = 0) -> list[Array]:
    """Return inputs with the extremes of their types: halves of them are the least and the greatest bytes."""
    rng = np.random.default_rng(seed)
    inputs = [each for each in read_dag(module).buffers if each.role is BufferRole.INPUT]
    return [_drawn(buffer.shape, buffer.dtype, rng) for buffer in inputs]


def _drawn(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    if dtype == "float32":
        return rng.uniform(0.5, 2, shape).astype(dtype)
    if dtype == "bfloat16":
        return (rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape))).astype(ml_dtypes.bfloat16)
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max + 1, shape)
    ends = rng.choice([limits.min, limits.max], shape)
    return np.where(rng.integers(0, 2, shape), values, ends).astype(dtype)


def _run(library: Any, inputs: Sequence[Array], module: tvm.IRModule) -> tuple[Array, dict[str, int]]:
    result = _result(module)
    found = tvm.runtime.tensor(np.full(result.shape, 113, result.dtype))
    with emulator.emulated() as counts:
        library["main"](*map(tvm.runtime.tensor, inputs), found)
    return np.asarray(found.numpy()), counts


def _result(module: tvm.IRModule) -> Buffer:
    return next(each for each in read_dag(module).buffers if each.role is BufferRole.OUTPUT)


def _expected(module: tvm.IRModule, inputs: Sequence[Array]) -> Array:
    """Return what the untuned module computes."""
    result = _result(module)
    found = tvm.runtime.tensor(np.zeros(result.shape, result.dtype))
    tvm.compile(module, target="llvm")["main"](*map(tvm.runtime.tensor, inputs), found)
    return np.asarray(found.numpy())


@executes_tiles
@pytest.mark.parametrize("name", slow_lane_except(CASES, "tdpbusd", "tdpbf16ps", "convolution", seconds=3))
def test_programs_are_right(name: str) -> None:
    module = CASES[name]
    inputs = _inputs(module)
    expected = _expected(module, inputs)
    allowed = Rounding.of(module["main"]).bounds(expected, None) if "bf" in name else 0
    programs = _programs(module, EMULATED)
    assert len(programs) == 3
    for program in programs:
        found, counts = _run(_compiled(module, program, EMULATED), inputs, module)
        assert (np.abs(found - expected) <= allowed).all(), str(program)
        if counts:
            assert counts["multiply"], str(program)
            threads = tvm.get_global_func("runtime.NumThreads")()
            assert 1 <= counts["configure"] == counts["release"] <= threads, "once by a thread, outside loops"


@pytest.mark.parametrize(
    ("name", "intrinsic"),
    [
        ("convolution", "amx_9x24x32_tdpbusd"),
        ("every second row", "amx_7x24x32_by2_tdpbusd"),
        ("four channels", "amx_7x24x28_by2_over7_tdpbusd"),
        ("four channels of bfloat16", "amx_14x24x20_over5_tdpbf16ps"),
    ],
)
def test_convolutions_multiply_rows_of_their_data(name: str, intrinsic: str) -> None:
    (program, *_) = _programs(CASES[name], SAPPHIRE_RAPIDS)
    (found,) = {stage.intrinsic for stage in program.sketch.stages} - {""}
    assert found == intrinsic
    product = tile_product(found)
    assert product is not None
    assert product.name == intrinsic


@executes_tiles
def test_columns_that_are_not_constant_are_copied() -> None:
    module = CASES["tdpbusd"]
    module = tvm.IRModule({"main": module["main"].without_attr("layout_free_buffers")})
    inputs = _inputs(module)
    (program, *_) = _programs(module, EMULATED, seed=1)
    found, counts = _run(_compiled(module, program, EMULATED), inputs, module)
    assert np.array_equal(found, _expected(module, inputs))
    assert not counts or counts["multiply"]


@executes_tiles
def test_bfloat16_is_added_up_as_intels_manual_says() -> None:
    """NaN and infinity spread, subnormal numbers count as zero, and sums are rounded to float32."""
    module = _plain(16, 16, 32, *HALVES)
    a, b = _inputs(module)
    a[0, 3], a[1, 3], a[2], b[:, 4] = np.nan, np.inf, 2.0**-130, 1.0
    exact = a.astype(np.float64) @ b.astype(np.float64)
    exact[2] = 0
    (program, *_) = _programs(module, EMULATED)
    found, _ = _run(_compiled(module, program, EMULATED), [a, b], module)
    assert np.isnan(found[0]).all()
    assert np.isinf(found[1]).all()
    assert (found[2] == 0).all()
    np.testing.assert_allclose(found[3:], exact[3:], rtol=2e-5, atol=2e-5 * np.abs(exact[3:]).max())


def test_sapphire_rapids_multiplies_by_tiles() -> None:
    module = CASES["tdpbusd"]
    (program, *_) = _programs(module, SAPPHIRE_RAPIDS)
    source = _compiled(module, program, SAPPHIRE_RAPIDS).mod.inspect_source("asm")
    for instruction in ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored", "tilerelease"):
        assert re.search(rf"^\s+{instruction}\b", source, re.MULTILINE), instruction


def test_only_libraries_with_tiles_need_them(tmp_path: Path) -> None:
    module, file = CASES["tdpbusd"], tmp_path / "model.o"
    untiled = replace(SAPPHIRE_RAPIDS, features=tuple(set(SAPPHIRE_RAPIDS.features) - {"amx_tile"}))
    for device, uses in ((SAPPHIRE_RAPIDS, True), (untiled, False)):
        program = sample(generate(read_dag(module), device)[0], 8, np.random.default_rng(0)).program(0)
        assert any(stage.intrinsic.startswith("amx_") for stage in program.sketch.stages) == uses
        _compiled(module, program, device).mod.write_to_file(str(file), "o")
        with file.open("rb") as library:
            needed = instructions_of(library, SAPPHIRE_RAPIDS.target)
        assert {"amx_tile", "amx_int8", "amx_bf16"}.issubset(needed) == uses
        assert "avx512_vnni" in needed
        assert any(name.startswith("amx_") for name in needed) == uses


@executes_tiles
def test_calibration_multiplies_tiles() -> None:
    measuring = _Calibration(EMULATED, time.perf_counter)
    tiles = (MAX_ROWS // TILE_ROWS) * (MAX_LANES // SUMS)
    with emulator.emulated() as counts:
        for benchmark in measuring._tile_products():
            benchmark.call(2)
            benchmark.record(128.0, 1e9)
            if measuring._measured["multiply_adds"].keys() == {"amxint8"}:
                call: Any = benchmark.call
                assert (call.args[2].numpy() == 1 + 2 * ROW_BYTES).all()
    if counts:
        assert counts["multiply"] == 2 * 2 * tiles
        # Two calls of two types: each loads its sums once, and its operands twice, as many as it multiplies.
        assert counts["load"] == 2 * (2 * tiles + 4)
    # 2,048 vectors of 32 bytes in 128 cycles.
    assert measuring._measured["multiply_adds"] == {"amxint8": 16.0, "amxbfloat16": 16.0}


def _plain(rows: int, lanes: int, depth: int, *dtypes: str) -> tvm.IRModule:
    a = te.placeholder((rows, depth), dtypes[0], name="a")
    b = te.placeholder((depth, lanes), dtypes[1], name="b")
    k = te.reduce_axis((0, depth), name="k")
    total = dtypes[2]
    return _module(
        [
            a,
            b,
            te.compute(
                (rows, lanes),
                lambda i, j: te.sum(a[i, k].astype(total) * b[k, j].astype(total), k),
                name="matmul",
            ),
        ]
    )


SMALL, LARGE = TileProduct(8, 16, 16, "tdpbusd"), TileProduct(32, 32, 64, "tdpbusd")


def _calls(products: Sequence[TileProduct], kind: ForKind) -> tirx.PrimFunc:
    """Return a function whose loop multiplies tiles of several sizes, one after the other."""
    data = tirx.decl_buffer((4096,), "int32", "data")
    pointer = data.access_ptr("rw")
    calls = [Evaluate(multiply_tiles(each, pointer, 64, pointer, 64, pointer)) for each in products]
    loop = For(tirx.Var("i", "int32"), 0, 4, kind, SeqStmt(calls) if len(calls) > 1 else calls[0])
    return tirx.PrimFunc([data], loop)


def _configurations(statement: Any) -> list[str]:
    text = str(statement)
    return re.findall(r'"tunefarm_(tiles_\w+|(?:load|add|store)_amx_\w+|release_tiles)"', text)


def _parts(product: TileProduct) -> list[str]:
    return [f"{part}_{product.name}" for part in ("load", "add", "store")]


def test_sums_stay_in_tiles_along_the_reduction() -> None:
    """
    for i in range(4):
        for k in range(3): multiply(sums[64 * i], rows[k], ...); multiply(sums[64 * i], rows[k + 1], ...)
    ->
        load(sums[64 * i])
        for k in range(3): add(rows[k], ...); add(rows[k + 1], ...)
        store(sums[64 * i])
    """
    data = tirx.decl_buffer((4096,), "int32", "data")
    i, k = tirx.Var("i", "int32"), tirx.Var("k", "int32")
    sums, *rows = (data.access_ptr("rw", offset=place) for place in (64 * i, k, k + 1))
    calls = [Evaluate(multiply_tiles(SMALL, sums, 64, each, 64, each)) for each in rows]
    loop = For(i, 0, 4, ForKind.SERIAL, For(k, 0, 3, ForKind.SERIAL, SeqStmt(calls)))
    body = use_tiles(tvm.IRModule({"main": tirx.PrimFunc([data], loop)}))["main"].body
    inner, outer = find_all(body, For)
    load, add, store = _parts(SMALL)
    assert _configurations(outer.body) == [load, add, add, store]
    assert _configurations(inner) == [add, add]


def test_other_sums_are_loaded_anew() -> None:
    data = tirx.decl_buffer((4096,), "int32", "data")
    places = [data.access_ptr("rw", offset=place) for place in (0, 64)]
    calls = [Evaluate(multiply_tiles(SMALL, each, 64, each, 64, each)) for each in places]
    loop = For(tirx.Var("k", "int32"), 0, 3, ForKind.SERIAL, SeqStmt(calls))
    body = use_tiles(tvm.IRModule({"main": tirx.PrimFunc([data], loop)}))["main"].body
    assert _configurations(find_all(body, For)[0]) == _parts(SMALL) * 2


def test_threads_configure_their_tiles_once() -> None:
    body = use_tiles(tvm.IRModule({"main": _calls([SMALL], ForKind.PARALLEL)}))["main"].body
    assert _configurations(body) == ["tiles_8x16x16", *_parts(SMALL), "release_tiles"]
    (launch,) = (one for one in find_all(body, AttrStmt) if one.attr_key == "pragma_parallel_launch_point")
    assert _configurations(launch.body) == _configurations(body)
    assert "tiles_8x16x16" not in _configurations(find_all(body, For)[0])


def test_a_loop_of_two_sizes_configures_each_of_them() -> None:
    body = use_tiles(tvm.IRModule({"main": _calls([SMALL, LARGE], ForKind.PARALLEL)}))["main"].body
    (loop,) = find_all(body, For)
    assert _configurations(loop) == [
        *("tiles_8x16x16", *_parts(SMALL), "release_tiles"),
        *("tiles_32x32x64", *_parts(LARGE), "release_tiles"),
    ]


def test_a_configuration_has_the_sizes_of_all_tiles() -> None:
    product = fitting_product(20, 24, 48, "tdpbusd")
    assert product == TileProduct(20, 24, 48, "tdpbusd")
    memory = tile_configuration(product)
    assert len(memory) == 64
    assert memory[:16] == bytes([1, *[0] * 15])
    assert np.frombuffer(memory[16:48], "<u2").tolist()[:8] == [64, 32, 64, 32, 48, 48, 64, 32]
    assert list(memory[48:56]) == [16, 16, 4, 4, 16, 4, 12, 12]
    assert not any(memory[32:48])
    assert not any(memory[56:])
