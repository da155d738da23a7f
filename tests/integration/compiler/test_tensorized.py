"""Programs with dot-product instructions are right, in this process and in others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, topi

from compiler.codegen.compilation import compile_functions, compile_scheduled
from compiler.lowering.trace import apply_trace, lower
from compiler.measuring.rounding import Rounding
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target
from compiler.vocabulary import NARROW_BUFFERS
from compiler.workload import to_json
from core.device import Device
from search.cost.analytic import estimate
from search.dag import NARROW
from search.programs.annotate import sample
from search.programs.program import Program, gather
from search.rules.space import generate
from search.sketches.tile_products import tile_product
from tests import arm_programs

Array = NDArray[Any]
DEVICE = detect_device()
FEW, MANY = 2, 3  # programs of a sketch
needs_vnni = pytest.mark.skipif(
    "avx512_vnni" not in DEVICE.features, reason="this CPU has no such instruction"
)
needs_bfloat16 = pytest.mark.skipif(
    "avx512_bf16" not in DEVICE.features, reason="this CPU has no dot product of bfloat16"
)
BFLOAT16 = ("bfloat16", "bfloat16", "float32")
COPIED_OR_PACKED = pytest.mark.parametrize("constants", [(), (1,)], ids=["copied", "packed"])


@dataclass(frozen=True)
class Case:
    """`compute` computes the result from TE tensors, `expect` from arrays of int64."""

    operands: tuple[tuple[int, ...], tuple[int, ...]]
    compute: Callable[[te.Tensor, te.Tensor], te.Tensor]
    expect: Callable[[Array, Array], Array]
    dtypes: tuple[str, ...] = ("uint8", "int8", "int32")

    def module(self, constants: Sequence[int] = ()) -> tvm.IRModule:
        a, b = (
            te.placeholder(s, d, name=n) for s, d, n in zip(self.operands, self.dtypes, "ab", strict=False)
        )
        function = te.create_prim_func([a, b, self.compute(a, b)]).with_attr("tirx.noalias", True)
        if constants:
            function = function.with_attr("layout_free_buffers", list(constants))
        return tvm.IRModule({"main": function})

    def inputs(self) -> list[Array]:
        """Return all byte values, in an order in which sums of two products exceed 16 bits; or floats of all
        sizes.
        """
        rng = np.random.default_rng(0)
        if self.dtypes == BFLOAT16:
            floats = (
                rng.standard_normal(shape) * np.exp2(rng.integers(-9, 9, shape)) for shape in self.operands
            )
            return [each.astype(ml_dtypes.bfloat16) for each in floats]
        return [_bytes(rng, shape, dtype) for shape, dtype in zip(self.operands, self.dtypes, strict=False)]


def _bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max + 1, size=shape, dtype=dtype)
    values.flat[: values.size // 4] = limits.max
    return values


def _matmul(n: int, m: int, k: int, *dtypes: str, transposed: bool = False) -> Case:
    summed = dtypes[2] if dtypes else "int32"

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        axis = te.reduce_axis((0, k), name="k")
        return te.compute(
            (n, m),
            lambda i, j: te.sum(
                a[i, axis].astype(summed) * (b[j, axis] if transposed else b[axis, j]).astype(summed), axis
            ),
            name="matmul",
        )

    shape = (m, k) if transposed else (k, m)
    return Case(((n, k), shape), compute, lambda a, b: a @ (b.T if transposed else b), dtypes or Case.dtypes)


def _batched(batch: int, n: int, m: int, k: int) -> Case:
    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        axis = te.reduce_axis((0, k), name="k")
        return te.compute(
            (batch, n, m),
            lambda z, i, j: te.sum(a[z, i, axis].astype("int32") * b[z, axis, j].astype("int32"), axis),
            name="matmul",
        )

    return Case(((batch, n, k), (batch, k, m)), compute, lambda a, b: a @ b)


def _conv(size: int, inputs: int, outputs: int, kernel: int, stride: int, padding: int, *dtypes: str) -> Case:
    """Return a convolution with channels last and a rectifier."""
    dtypes = dtypes or Case.dtypes

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        conv = topi.nn.conv2d(a, b, stride, padding, 1, "NHWC", "HWIO", out_dtype=dtypes[2])
        return topi.nn.relu(conv)

    def expect(a: Array, b: Array) -> Array:
        padded = np.pad(a, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
        return np.maximum(np.einsum("nyxchw,hwcf->nyxf", windows[:, ::stride, ::stride], b), 0)

    shapes = ((1, size, size, inputs), (kernel, kernel, inputs, outputs))
    return Case(shapes, compute, expect, dtypes)


CASES = {
    "matmul": _matmul(32, 48, 64),
    "odd rows": _matmul(37, 32, 20),
    "one instruction": _matmul(1, 16, 4),
    "eight lanes": _matmul(9, 24, 16),
    "transposed": _matmul(16, 32, 24, transposed=True),
    "batched": _batched(2, 12, 32, 16),
    "convolution": _conv(10, 8, 32, 3, 1, 1),
    "strided": _conv(9, 12, 16, 3, 2, 1),
    "pointwise": _conv(7, 16, 48, 1, 1, 0),
}


def _programs(module: tvm.IRModule, device: Device, seed: int, each: int) -> list[Program]:
    """Return tensorized programs, some of every sketch."""
    rng = np.random.default_rng(seed)
    found = []
    for sketch in generate(read_dag(module), device):
        if any(stage.intrinsic for stage in sketch.stages):
            drawn = sample(sketch, 32 * each, rng)
            rows = rng.permutation(len(drawn))[:each]
            found += [drawn.program(int(row)) for row in rows]
    return found


HALVES = {
    "matmul": _matmul(32, 48, 64, *BFLOAT16),
    "one row": _matmul(1, 16, 2, *BFLOAT16),
    "eight lanes": _matmul(9, 24, 16, *BFLOAT16),
    "transposed": _matmul(16, 32, 24, *BFLOAT16, transposed=True),
    "convolution": _conv(10, 8, 32, 3, 1, 1, *BFLOAT16),
    "strided": _conv(9, 6, 16, 3, 2, 1, *BFLOAT16),
}


def _compiled(module: tvm.IRModule, program: Program, device: Device) -> Any:
    scheduled = apply_trace(module, lower(module, program, device))
    return compile_functions(scheduled, parse_target(device.target), check_arguments=True)


def _run(library: Any, case: Case, expected: Array, inputs: Sequence[Array] = ()) -> Array:
    placed = [tvm.runtime.tensor(array, device=tvm.cpu()) for array in inputs or case.inputs()]
    result = tvm.runtime.tensor(np.full(expected.shape, 113, case.dtypes[2]), device=tvm.cpu())
    library["main"](*placed, result)
    return np.asarray(result.numpy())


@needs_vnni
@COPIED_OR_PACKED
def test_random_programs_are_right_and_use_the_instruction(constants: tuple[int, ...]) -> None:
    _check(CASES["matmul"], constants, FEW)


@needs_vnni
@pytest.mark.slow_lane(seconds=4)
@pytest.mark.timeout(1800)
@COPIED_OR_PACKED
@pytest.mark.parametrize("name", CASES)
def test_many_random_programs_are_right(name: str, constants: tuple[int, ...]) -> None:
    _check(CASES[name], constants, MANY)


def _check(case: Case, constants: tuple[int, ...], each: int) -> None:
    module = case.module(constants)
    expected = case.expect(*(array.astype(np.int64) for array in case.inputs()))
    programs = _programs(module, DEVICE, each, each)
    assert programs
    with ThreadPoolExecutor(2) as builders:
        libraries = list(builders.map(lambda one: _compiled(module, one, DEVICE), programs))
    for program, library in zip(programs, libraries, strict=True):
        assert _instruction(program, "vpdpbusd") in library.mod.inspect_source("asm"), str(program)
        assert np.array_equal(_run(library, case, expected), expected), str(program)


def _instruction(program: Program, dot_product: str) -> str:
    """Return AMX's instruction if the program multiplies tiles."""
    products = [tile_product(stage.intrinsic) for stage in program.sketch.stages]
    return next((one.instruction for one in products if one is not None), dot_product)


@needs_bfloat16
@COPIED_OR_PACKED
def test_products_of_bfloat16_use_the_instruction(constants: tuple[int, ...]) -> None:
    _check_halves(HALVES["convolution"], constants, 1)


@needs_bfloat16
@pytest.mark.slow_lane
@pytest.mark.timeout(1800)
@COPIED_OR_PACKED
@pytest.mark.parametrize("name", HALVES)
def test_many_random_programs_of_bfloat16_are_right(name: str, constants: tuple[int, ...]) -> None:
    _check_halves(HALVES[name], constants, MANY)


def _check_halves(case: Case, constants: tuple[int, ...], each: int) -> None:
    """Compare with sums in float64, by the bound that candidates are verified by."""
    module = case.module(constants)
    expected = case.expect(*(array.astype(np.float64) for array in case.inputs())).astype(np.float32)
    allowed = Rounding.of(module["main"]).bounds(expected, None)
    programs = _programs(module, DEVICE, each, each)
    assert programs
    for program in programs:
        library = _compiled(module, program, DEVICE)
        assert _instruction(program, "vdpbf16ps") in library.mod.inspect_source("asm"), str(program)
        assert (np.abs(_run(library, case, expected) - expected) <= allowed).all(), str(program)


@needs_bfloat16
def test_subnormal_products_may_be_zero() -> None:
    """The instruction takes subnormal operands and sums as zero, and the bound allows it."""
    case = HALVES["one row"]
    module = case.module()
    tiny = [np.full(shape, 2.0**-66, ml_dtypes.bfloat16) for shape in case.operands]
    expected = np.full((1, 16), 2.0**-131, np.float32)
    (program, *_) = _programs(module, DEVICE, 0, 1)
    found = _run(_compiled(module, program, DEVICE), case, expected, tiny)
    assert (found == 0).all()
    allowed = Rounding.of(module["main"]).bounds(expected, None)
    assert (np.abs(found - expected) <= allowed).all()
    assert (allowed < 2.0**-120).all()


@pytest.mark.parametrize(
    ("dtypes", "mcpu", "features", "instruction"),
    [
        (("int8", "int8", "int32"), "cortex-a76", ("asimd", "asimddp"), "sdot"),
        (("uint8", "uint8", "uint32"), "cortex-a76", ("asimd", "asimddp"), "udot"),
        (("uint8", "uint8", "int32"), "cortex-a76", ("asimd", "asimddp"), "udot"),
        (("int8", "int8", "int32"), "cortex-a53", ("asimd",), "smull"),
    ],
)
def test_boards_use_their_instructions(
    dtypes: tuple[str, str, str], mcpu: str, features: tuple[str, ...], instruction: str
) -> None:
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu}
    board = replace(DEVICE, features=features, vector_bytes=16, mcpu=mcpu, target=json.dumps(target))
    module = _matmul(16, 32, 16, *dtypes).module([1])
    for program in _programs(module, board, seed=0, each=1):
        library = _compiled(module, program, board)
        assert re.search(rf"\b{instruction}\b", library.mod.inspect_source("asm")), str(program)


def test_dot_products_of_arm_multiply_by_lanes_of_rows() -> None:
    """A load of a row has the operands of four steps."""
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    board = replace(
        DEVICE,
        features=("asimd", "asimddp"),
        vector_bytes=16,
        mcpu="cortex-a76",
        target=json.dumps(target),
        triple="aarch64-linux-gnu",
        profile=None,
    )
    module = _matmul(16, 32, 64, "int8", "int8", "int32").module([1])
    programs = _programs(module, board, seed=0, each=16)
    best = min(programs, key=lambda one: float(estimate(gather([one]), board).seconds[0]))
    scheduled = apply_trace(module, lower(module, best, board))
    library, _ = compile_scheduled(scheduled, parse_target(board.target))
    assert re.search(r"sdot.*\.4b\[3\]", library.mod.inspect_source("asm")), str(best)


ARM = {
    "sdot": (_matmul(5, 8, 16, "int8", "int8", "int32"), ("asimd", "asimddp")),
    "smmla": (_matmul(6, 8, 64, "int8", "int8", "int32"), ("asimd", "asimddp", "i8mm")),
    "smmla of a convolution": (
        _conv(6, 32, 8, 3, 1, 1, "int8", "int8", "int32"),
        ("asimd", "asimddp", "i8mm"),
    ),
    "ummla": (_matmul(6, 8, 32, "uint8", "uint8", "int32"), ("asimd", "asimddp", "i8mm")),
    "bfdot": (_matmul(5, 8, 16, *BFLOAT16), ("asimd", "bf16")),
    "bfmmla": (_matmul(6, 8, 64, *BFLOAT16), ("asimd", "bf16")),
}


@pytest.mark.skipif(arm_programs.obstacle() is not None, reason=f"{arm_programs.obstacle()}")
@pytest.mark.parametrize(
    "constants", [pytest.param((), marks=pytest.mark.slow_lane(seconds=1)), (1,)], ids=["copied", "packed"]
)
@pytest.mark.parametrize("name", ARM)
def test_instructions_of_arm_compute_right_results(
    name: str, constants: tuple[int, ...], tmp_path: Path
) -> None:
    case, features = ARM[name]
    target = {
        "kind": "llvm",
        "mtriple": "aarch64-linux-gnu",
        "mcpu": "neoverse-v1",
        "mattr": ["-sve"],
        "num-cores": 1,
    }
    device = replace(
        DEVICE,
        triple="aarch64-linux-gnu",
        features=features,
        vector_bytes=16,
        mcpu="neoverse-v1",
        target=json.dumps(target),
    )
    module, inputs = case.module(constants), case.inputs()
    exact = case.expect(*(array.astype(np.float64) for array in inputs))
    expected = exact.astype(case.dtypes[2])
    programs = _programs(module, device, seed=1, each=1)
    assert programs
    for place, program in enumerate(programs):
        library = _compiled(module, program, device)
        assert re.search(rf"\b{name.split()[0]}\b", library.mod.inspect_source("asm")), str(program)
        folder = tmp_path / str(place)
        folder.mkdir()
        found = arm_programs.run(library, [*inputs, np.full(expected.shape, 113, case.dtypes[2])], folder)
        if case.dtypes == BFLOAT16:
            allowed = Rounding.of(module["main"]).bounds(expected, None)
            assert (np.abs(found - expected) <= allowed).all(), str(program)
        else:
            assert np.array_equal(found, expected), str(program)


@pytest.mark.skipif("avx2" not in DEVICE.features, reason="this CPU has no AVX2")
@pytest.mark.parametrize("constants", [(), (1,)], ids=["copied", "packed"])
@pytest.mark.parametrize("columns", ["int8", "int16"])
def test_the_least_and_greatest_bytes_are_exact_without_vnni(
    columns: str, constants: tuple[int, ...]
) -> None:
    """Sums of two such products exceed 16 bits. Columns of int16 aren't widened."""
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
    features = ("avx", "avx2", "fma")
    device = replace(DEVICE, features=features, vector_bytes=32, mcpu="haswell", target=json.dumps(target))
    case = _conv(5, 6, 16, 3, 1, 1, "int16", columns, "int32")
    module = case.module(constants)
    data, weight = (np.zeros(shape, dtype) for shape, dtype in zip(case.operands, case.dtypes, strict=False))
    data[:], weight[:] = 255, 127
    data[:, 2:], weight[..., :9] = -255, -128
    expected = case.expect(data.astype(np.int64), weight.astype(np.int64))
    for program in _programs(module, device, seed=0, each=1):
        library = _compiled(module, program, device)
        source = library.mod.inspect_source("asm")
        assert "vpmaddwd" in source
        assert ("vpmovsxbw" in source) == (columns == "int8")
        assert "zmm" not in source
        assert np.array_equal(_run(library, case, expected, [data, weight]), expected), str(program)


@pytest.mark.skipif("avx2" not in DEVICE.features, reason="this CPU has no AVX2")
@pytest.mark.parametrize("constants", [(), (1,)], ids=["copied", "packed"])
def test_narrow_columns_are_exact_with_16_bit_sums(constants: tuple[int, ...]) -> None:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
    features = ("avx", "avx2", "fma")
    device = replace(DEVICE, features=features, vector_bytes=32, mcpu="haswell", target=json.dumps(target))
    case = _conv(5, 6, 16, 3, 1, 1)
    wide = case.module(constants)
    assert not _programs(wide, device, seed=0, each=1)
    module = tvm.IRModule({"main": wide["main"].with_attr(NARROW_BUFFERS, [1])})
    data, weight = (np.zeros(shape, dtype) for shape, dtype in zip(case.operands, case.dtypes, strict=False))
    data[:], weight[:] = 255, NARROW
    weight[..., :9] = -NARROW
    expected = case.expect(data.astype(np.int64), weight.astype(np.int64))
    for program in _programs(module, device, seed=0, each=1):
        library = _compiled(module, program, device)
        assert "vpmaddubsw" in library.mod.inspect_source("asm")
        assert np.array_equal(_run(library, case, expected, [data, weight]), expected), str(program)
        saturated = _run(library, case, expected, [data, 2 * weight - 1])
        assert not np.array_equal(
            saturated, case.expect(data.astype(np.int64), 2 * weight.astype(np.int64) - 1)
        )


def test_avx_vnni_is_used_without_avx512() -> None:
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "alderlake"}
    features = ("avx", "avx2", "avx_vnni", "fma")
    device = replace(DEVICE, features=features, vector_bytes=32, mcpu="alderlake", target=json.dumps(target))
    (program, *_) = _programs(CASES["matmul"].module([1]), device, seed=0, each=1)
    source = _compiled(CASES["matmul"].module([1]), program, device).mod.inspect_source("asm")
    assert re.search(r"{vex}\s+vpdpbusd", source)
    assert "zmm" not in source


REPLAY = """
import sys, tvm
from compiler.lowering.trace import LoweringError, apply_trace
from compiler.workload import from_json
from compiler.target import parse_target
workload, trace, target = (open(path).read() for path in sys.argv[1:4])
library = tvm.compile(apply_trace(from_json(workload), trace), target=parse_target(target))
assert "dpbusd" in library.mod.inspect_source("asm")
assert "tvm.s_tir.tensor_intrin.cuda" not in sys.modules, "more than what is needed was imported"
if len(sys.argv) > 4:
    try:
        apply_trace(from_json(workload), trace.replace(sys.argv[4], "abacus"))
    except LoweringError as error:
        assert "abacus" in str(error)
    else:
        raise AssertionError("nobody knows this instruction")
    assert tvm.s_tir.TensorIntrin.get("wmma_fill_16x16x16_f32") is not None
"""


def _replay(folder: Any, *, is_renamed: bool = False) -> subprocess.CompletedProcess[str]:
    module = CASES["matmul"].module([1])
    (program, *_) = _programs(module, DEVICE, seed=0, each=1)
    texts = {"workload": to_json(module), "trace": lower(module, program, DEVICE), "target": DEVICE.target}
    (intrinsic,) = {stage.intrinsic for stage in program.sketch.stages} - {""}
    assert intrinsic in texts["trace"]
    for name, text in texts.items():
        (folder / name).write_text(text)
    more = [intrinsic] if is_renamed else []
    command = [sys.executable, "-c", REPLAY, *(str(folder / name) for name in texts), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@needs_vnni
def test_a_trace_replays_in_another_process(tmp_path: Any) -> None:
    replayed = _replay(tmp_path)
    assert replayed.returncode == 0, replayed.stderr


@needs_vnni
@pytest.mark.slow_lane(seconds=8)
def test_a_trace_with_an_unknown_instruction_is_refused_once_all_of_tvms_are_imported(tmp_path: Any) -> None:
    """Uses a separate process, because each import searches all loaded modules, and this process has many."""
    replayed = _replay(tmp_path, is_renamed=True)
    assert replayed.returncode == 0, replayed.stderr
