"""Matrix products by `ldmatrix` and `mma.sync`, executed by the emulator and compiled by CUDA's tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from compiler.codegen.fragments import use_mma_sync
from compiler.codegen.nvcc import compile_cubin
from compiler.reading.subgraph import read_dag
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.choices import choose
from tests.cuda_emulator.emulator import Emulated, EmulationError, HostCode, Launch, load
from tests.cuda_emulator.toolchain import compile_error, find_nvdisasm, instructions, merged
from tests.cuda_emulator.translate import for_cpu
from tests.devices import GPU
from tests.floats import in_tf32
from tests.gpu_programs import Candidate, compiled, failures
from tests.marks import slow_lane_except
from tests.suite import Case

pytestmark = pytest.mark.slow
WARP = 32
KERNEL = """\
#include <mma.h>
extern "C" __global__ void main_kernel(SUM* __restrict__ result, OPERAND* __restrict__ left,
                                       OPERAND* __restrict__ right) {
  alignas(64) __shared__ OPERAND a[16 * 48], b[16 * 48];
  for (int i = threadIdx.x; i < 16 * DEPTH; i += 32) a[i / DEPTH * STRIDE + i % DEPTH + SHIFT] = left[i];
  for (int i = threadIdx.x; i < 16 * DEPTH; i += 32) b[i / ROW * STRIDE + i % ROW] = right[i];
  __syncthreads();
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, DEPTH, TYPE, nvcuda::wmma::row_major> x[1];
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, DEPTH, TYPE, nvcuda::wmma::LAYOUT> y[1];
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, DEPTH, SUM> z[1];
  nvcuda::wmma::fill_fragment(z[0], 0.000000e+00f);
  nvcuda::wmma::load_matrix_sync(x[0], &a[SHIFT], STRIDE);
  nvcuda::wmma::load_matrix_sync(y[0], &b[0], STRIDE);
  nvcuda::wmma::mma_sync(z[0], x[0], y[0], z[0]);
  nvcuda::wmma::mma_sync(z[0], x[0], y[0], z[0]);
  nvcuda::wmma::store_matrix_sync(result, z[0], 16, nvcuda::wmma::mem_row_major);
}
"""


@dataclass(frozen=True)
class Types:
    """The types of an operand and its sums in CUDA C and in numpy. TF32 fragments are declared as half with
    depth 8.
    """

    operand: str
    sums: str
    arrays: tuple[Any, Any]
    fragment: str
    depth: int = 16

    def __str__(self) -> str:
        return f"{self.operand}-{self.sums}-{self.depth}"

    def kernel(self, by_rows: bool, stride: int, shift: int = 0) -> str:
        facts = {
            "DEPTH": self.depth,
            "STRIDE": stride,
            "SHIFT": shift,
            "ROW": 16 if by_rows else self.depth,
            "LAYOUT": "row_major" if by_rows else "col_major",
            "OPERAND": self.operand,
            "TYPE": self.fragment,
            "SUM": self.sums,
        }
        source = KERNEL
        for name, fact in facts.items():
            source = source.replace(name, str(fact))
        return use_mma_sync(source)


HALF = Types("half", "float", (np.float16, np.float32), "half")
NARROW = Types("half", "half", (np.float16, np.float16), "half")
BFLOAT = Types("__nv_bfloat16", "float", (ml_dtypes.bfloat16, np.float32), "__nv_bfloat16")
BYTES = Types("signed char", "int", (np.int8, np.int32), "signed char")
TF32 = Types("float", "float", (np.float32, np.float32), "half", depth=8)
CAPABILITIES = {HALF: (75, 80), NARROW: (75, 80), BYTES: (75, 80), BFLOAT: (80,), TF32: (80,)}
CASES = [
    (types, capability, by_rows)
    for types, capabilities in CAPABILITIES.items()
    for capability in capabilities
    for by_rows in (False, True)
]
FAST = [(HALF, 80, True), (TF32, 80, False), (BYTES, 75, True)]


def emulated(source: str, capability: int, folder: Path) -> Emulated:
    loaded = load(for_cpu(merged([source]), capability), folder / "kernel.so")
    host = HostCode((Launch("main_kernel", (0, 1, 2), (1, 1, 1), (WARP, 1, 1)),), {})
    return Emulated(loaded, 0, host)


@pytest.mark.parametrize("case", slow_lane_except(CASES, *FAST), ids=lambda case: "-".join(map(str, case)))
def test_a_product_of_small_integers_is_exact(case: tuple[Types, int, bool], tmp_path: Path) -> None:
    types, capability, by_rows = case
    rng = np.random.default_rng(0)
    operand, sums = types.arrays
    left = rng.integers(-8, 8, (16, types.depth)).astype(operand)
    right = rng.integers(-8, 8, (types.depth, 16)).astype(operand)
    stored = np.ascontiguousarray(right if by_rows else right.T)
    result = np.full((16, 16), 113, dtype=sums)
    source = types.kernel(by_rows, stride=48)
    assert compile_error([source], capability) == ""
    emulated(source, capability, tmp_path).run([result, left, stored])
    np.testing.assert_array_equal(result, 2 * (left.astype(np.int64) @ right.astype(np.int64)))


@pytest.mark.parametrize("types", [HALF, TF32], ids=str)
def test_sums_are_cut_off_towards_zero(types: Types, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    left, right = (
        rng.uniform(0.5, 1, shape).astype(types.arrays[0]) for shape in ((16, types.depth), (types.depth, 16))
    )
    result = np.zeros((16, 16), dtype=np.float32)
    emulated(types.kernel(True, stride=48), 80, tmp_path).run([result, left, right])
    # float16 and TF32 both have ten fraction bits, so rounding changes nothing.
    exact = 2 * in_tf32(left.astype(np.float32)).astype(np.float64) @ in_tf32(right.astype(np.float32))
    assert (result <= exact).all()
    assert (result < exact.astype(np.float32)).any()
    np.testing.assert_allclose(result, exact, rtol=1e-6)


def test_rows_that_are_not_aligned_are_an_error(tmp_path: Path) -> None:
    arrays = [np.zeros((16, 16), dtype=dtype) for dtype in (np.float32, np.float16, np.float16)]
    program = emulated(HALF.kernel(True, stride=48, shift=1), 80, tmp_path)
    with pytest.raises(EmulationError, match="aligned to 16 bytes"):
        program.run(arrays)


def test_code_without_fragments_is_unchanged() -> None:
    source = 'extern "C" __global__ void main_kernel() {}'
    assert use_mma_sync(source) == source


MULTIPLY = [
    (Case("GMM", (256, 256, 256), dtype="float16"), "HMMA"),
    (Case("GMM", (256, 256, 256), dtype="bfloat16"), "HMMA"),
    (Case("GMM", (256, 256, 256), dtype="int8"), "IMMA"),
]


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize(
    "product", slow_lane_except(MULTIPLY, MULTIPLY[0]), ids=lambda product: str(product[0])
)
def test_kernels_have_the_instructions_that_were_meant(product: tuple[Case, str], tmp_path: Path) -> None:
    case, multiply = product
    (sketch,) = (one for one in generate(read_dag(case.module()), GPU) if one.of_kind(StageKind.TENSOR))
    tile = {"warps i": 2, "warps j": 2, "fragments i": 2, "fragments j": 4, "fragments k": 2, "stages": 3}
    found = compiled(case, choose(sketch, tile | {"unroll": 0}))
    assert isinstance(found, Candidate), str(found)
    assert "nvcuda::wmma::" not in found.source
    assert "mma.h" not in found.source
    code, resources = compile_cubin(found.source, "sm_80")
    assert resources is not None
    assert resources.spilled_bytes == 0
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(code)
    counts = instructions(cubin)
    assert counts[multiply] > 0
    assert counts["LDSM"] > 0, "operands are loaded by ldmatrix"
    assert counts["LDGSTS"] > 0, "operands are copied asynchronously"
    assert counts["LDL"] + counts["STL"] == 0, "nothing lies in local memory"


@pytest.mark.slow_lane
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_padded_operands_are_copied_asynchronously(dtype: str, tmp_path: Path) -> None:
    case = Case("C2D", (7, 7, 32, 32, 3, 1, 1), dtype=dtype)
    (sketch,) = (one for one in generate(read_dag(case.module()), GPU) if one.of_kind(StageKind.TENSOR))
    tile = {"warps i": 1, "warps j": 1, "fragments i": 2, "fragments j": 2, "fragments k": 2, "stages": 3}
    found = compiled(case, choose(sketch, tile | {"unroll": 0}))
    assert isinstance(found, Candidate), str(found)
    code, _ = compile_cubin(found.source, "sm_80")
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(code)
    counts = instructions(cubin)
    # Zeros are stored beside the copies, but nothing is loaded into registers.
    assert counts["LDGSTS"] > 0
    assert counts["LDG"] == 0
    wrong = failures([found])
    assert not wrong, "\n\n".join(map(str, wrong))
