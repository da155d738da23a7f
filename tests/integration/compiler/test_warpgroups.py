"""Matrix products of warpgroups (`wgmma`), executed by the emulator and compiled by CUDA's tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

import compiler.codegen.pipeline as pipeline
from compiler.codegen.compilation import compile_scheduled
from compiler.codegen.fragments import KERNELS_START
from compiler.codegen.nvcc import compile_cubin
from compiler.codegen.nvrtc import compile_source
from compiler.codegen.warpgroups import architecture
from compiler.lowering.trace import apply_trace, lower
from compiler.reading.subgraph import read_dag
from search.rules.space import generate
from search.sketches.stage import StageKind
from search.sketches.warpgroups import SUMS
from system.nvcc import find_compiler
from tests.choices import choose
from tests.cuda_emulator.emulator import EmulationError, TensorMap, compile_batch, host_code
from tests.cuda_emulator.toolchain import find_nvdisasm, instructions
from tests.hopper import HOPPER, TARGET
from tests.marks import slow_lane_except
from tests.suite import Case

SMALL = {"warpgroups": 1, "columns": 64, "depth": 32, "stages": 3, "tensor maps": 0}
LARGE = {"warpgroups": 2, "columns": 256, "depth": 64, "stages": 4, "tensor maps": 0}
BY_MAPS = {"warpgroups": 1, "columns": 64, "depth": 64, "stages": 3, "tensor maps": 1}


def compiled(module: tvm.IRModule, tile: dict[str, int]) -> tuple[str, tvm.IRModule]:
    """Return the CUDA C of a program and its scheduled module, replayed from its trace."""
    sketches = generate(read_dag(module), HOPPER)
    sketch = next(one for one in sketches if one.of_kind(StageKind.WARPGROUPS))
    scheduled = apply_trace(module, lower(module, choose(sketch, tile), HOPPER))
    library, _ = compile_scheduled(scheduled, TARGET)
    return library.mod.imports[0].inspect_source(), scheduled


def difference(case: Case, source: str, scheduled: tvm.IRModule, folder: Path, order: int = 1) -> str:
    (program,) = compile_batch([(source, host_code(scheduled, TARGET))], folder)
    arguments = case.arguments()
    program.run(arguments, order)
    *inputs, output = arguments
    return case.difference(output, case.reference(inputs))


def transposed(rows: int, columns: int, depth: int, operand: str = "float16") -> tvm.IRModule:
    """A product whose right operand is stored as [columns, depth]."""
    first = te.placeholder((rows, depth), operand, name="A")
    second = te.placeholder((columns, depth), operand, name="B")
    k = te.reduce_axis((0, depth), name="k")
    sums = SUMS[operand]
    product = te.compute(
        (rows, columns),
        lambda i, j: te.sum(first[i, k].astype(sums) * second[j, k].astype(sums), axis=k),
        name="C",
    )
    return tvm.IRModule({"main": te.create_prim_func([first, second, product])})


CASES = [
    (Case("GMM", (128, 64, 256), dtype="float16"), SMALL),
    (Case("GMM", (128, 100, 180), dtype="bfloat16"), SMALL | {"warpgroups": 2, "stages": 4}),
    # Tensor maps, of matrices that end inside a tile.
    (Case("GMM", (128, 128, 320), dtype="float16"), BY_MAPS | {"warpgroups": 2, "columns": 128}),
    (Case("GMM", (100, 72, 264), batch=2, dtype="bfloat16"), BY_MAPS),
    # Padded pixels and a fused epilogue.
    (Case("ConvLayer", (10, 10, 32, 72, 3, 1, 1), dtype="float16"), SMALL),
]


@pytest.mark.slow_lane(seconds=1)
@pytest.mark.parametrize(("case", "tile"), CASES, ids=str)
def test_results_are_right(case: Case, tile: dict[str, int], tmp_path: Path) -> None:
    source, scheduled = compiled(case.module(), tile)
    assert difference(case, source, scheduled, tmp_path) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operand", "tile", "function"),
    [
        ("float16", SMALL, "multiply_tiles<half, 32, false>"),
        ("float16", BY_MAPS, "multiply_swizzled<half, 64, false>"),
        ("int8", SMALL | {"depth": 64}, "multiply_tiles<signed char, 64, false>"),
        ("int8", BY_MAPS | {"depth": 128}, "multiply_swizzled<signed char, 128, false>"),
    ],
)
def test_right_operands_stored_by_columns_are_read_as_they_lie(
    operand: str, tile: dict[str, int], function: str, tmp_path: Path
) -> None:
    source, scheduled = compiled(transposed(64, 64, 512, operand), tile)
    assert function in source
    (program,) = compile_batch([(source, host_code(scheduled, TARGET))], tmp_path)
    rng = np.random.default_rng(0)
    least, most = (-128, 128) if operand == "int8" else (-8, 8)
    first, second = (rng.integers(least, most, (64, 512)).astype(operand) for _ in range(2))
    result = np.full((64, 64), 113, dtype=SUMS[operand])
    program.run([first, second, result])
    np.testing.assert_array_equal(result, first.astype(result.dtype) @ second.astype(result.dtype).T)


@pytest.mark.slow_lane(seconds=1)
def test_pixels_are_the_rows_of_a_matrix(tmp_path: Path) -> None:
    pixels = te.placeholder((9, 10, 256), "float16", name="A")
    weight = te.placeholder((1, 256, 72), "float16", name="B")
    one, k = te.reduce_axis((0, 1), name="one"), te.reduce_axis((0, 256), name="k")

    def product(h: Any, w: Any, o: Any) -> Any:
        return pixels[h + one, w, k].astype("float32") * weight[one, k, o].astype("float32")

    result = te.compute((9, 10, 72), lambda *at: te.sum(product(*at), axis=[one, k]), name="C")
    module = tvm.IRModule({"main": te.create_prim_func([pixels, weight, result])})
    source, scheduled = compiled(module, BY_MAPS)
    (program,) = compile_batch([(source, host_code(scheduled, TARGET))], tmp_path)
    rng = np.random.default_rng(0)
    arguments = [rng.integers(-8, 8, shape).astype(np.float16) for shape in ((9, 10, 256), (1, 256, 72))]
    found = np.full((9, 10, 72), 113, dtype=np.float32)
    program.run([*arguments, found])
    np.testing.assert_array_equal(found, arguments[0].astype(np.float32) @ arguments[1][0].astype(np.float32))


@pytest.mark.slow
def test_each_column_of_a_map_is_fetched_once(tmp_path: Path) -> None:
    source, scheduled = compiled(Case("GMM", (128, 128, 256), dtype="float16").module(), BY_MAPS)
    (launch,) = host_code(scheduled, TARGET).launches
    assert "cp_async" not in source[source.index(KERNELS_START) :]
    assert [one.sizes for one in launch.buffers if isinstance(one, TensorMap)] == [
        (256, 128, 1, 512, 65536, 64, 64, 1),
        (128, 256, 1, 256, 65536, 64, 64, 1),
    ]


def without(text: str) -> Callable[[str], str]:
    def removed(source: str) -> str:
        assert text in source
        return source.replace(text, "")

    return removed


def replaced(text: str, other: str) -> Callable[[str], str]:
    def changed(source: str) -> str:
        assert text in source
        return source.replace(text, other)

    return changed


FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
ARRIVES = 'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(of_group(started_)) : "memory");'
PRODUCT_WAITS = replaced("wait_group.sync.aligned 1", "wait_group.sync.aligned 2")
FAULTS: list[tuple[str, dict[str, int], Callable[[str], str]]] = [
    ("made visible", SMALL, without(FENCE)),
    ("changed while", SMALL, PRODUCT_WAITS),
    ("made visible", BY_MAPS, without(FENCE)),
    ("before it had arrived", BY_MAPS, PRODUCT_WAITS),
    ("before it had arrived", BY_MAPS, replaced("tile_fetches.wait<1>();", "tile_fetches.wait<2>();")),
    ("before it had arrived", BY_MAPS, replaced('"r"(columns * rows * 128)', '"r"(0)')),
    ("nobody fetches", BY_MAPS, replaced('"r"(columns * rows * 128)', '"r"(columns * rows * 256)')),
    ("nobody fetches", BY_MAPS, replaced(ARRIVES, ";")),
]


@pytest.mark.slow_lane(seconds=1)
@pytest.mark.parametrize(("message", "tile", "fault"), FAULTS)
def test_a_missing_fence_or_wait_is_an_error(
    message: str, tile: dict[str, int], fault: Callable[[str], str], tmp_path: Path
) -> None:
    case = Case("GMM", (64, 64, 256), dtype="float16")
    source, scheduled = compiled(case.module(), tile)
    with pytest.raises(EmulationError, match=message):
        difference(case, fault(source), scheduled, tmp_path)


@pytest.mark.slow_lane(seconds=1)
def test_tvm_alone_waits_for_too_few_copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline, "wait_for_all_operands", lambda module: module)
    case = Case("GMM", (64, 64, 256), dtype="float16")
    source, scheduled = compiled(case.module(), SMALL)
    with pytest.raises(EmulationError, match="changed while"):
        difference(case, source, scheduled, tmp_path)


def test_waits_count_both_operands_as_one_group() -> None:
    source, _ = compiled(Case("GMM", (64, 64, 256), dtype="float16").module(), SMALL)
    loop = source[source.index("for (int ax3_0 = 0") :]
    assert loop.index("wait_group_1();") < loop.index("multiply_tiles") < loop.index("commit_group();")


@pytest.mark.slow
@pytest.mark.parametrize("by_maps", slow_lane_except([0, 1], 1))
@pytest.mark.parametrize(("operand", "instruction"), [("float16", "HGMMA"), ("int8", "IGMMA")])
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
def test_the_largest_tile_needs_no_local_memory_and_is_not_serialized(
    operand: str, instruction: str, by_maps: int, tmp_path: Path
) -> None:
    is_half = operand == "float16"
    by_rows = Case("GMM", (512, 512, 512), dtype=operand).module()
    module = by_rows if is_half else transposed(512, 512, 1024, operand)
    depth = 64 if is_half else 128
    source, scheduled = compiled(module, LARGE | {"depth": depth, "tensor maps": by_maps})
    (launch,) = host_code(scheduled, TARGET).launches
    assert launch.block == (128, 2, 1)
    code, resources = compile_cubin(source, "sm_90")
    assert resources is not None
    assert resources.spilled_bytes == 0
    nvrtc = find_compiler()
    assert nvrtc is not None
    if nvrtc.headers:
        _, said = compile_source(nvrtc, source, architecture(source, "sm_90"))
        assert "wgmma" not in said, "ptxas warns of serialized instructions"
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(code)
    counts = instructions(cubin)
    assert counts[instruction] > 0
    assert counts["HMMA"] + counts["IMMA"] + counts["LDL"] + counts["STL"] == 0
    if by_maps:
        assert counts["UTMALDG"] > 0, "one thread fetches whole tiles"
        assert counts["LDGSTS"] + counts["LDG"] == 0
    else:
        assert counts["LDGSTS"] > 0, "operands are copied asynchronously"
