"""Compile for GPUs by NVRTC, in this process."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen import nvcc, nvrtc
from compiler.codegen.nvcc import NvccError, compile_cubin, compiler_version
from compiler.reading.subgraph import read_dag
from core.measurement import Resources
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.stage import StageKind
from system.nvcc import NVRTC, CudaCompiler, find_compiler, find_nvcc
from tests.cuda_emulator.toolchain import find_nvdisasm, instructions
from tests.devices import GPU
from tests.gpu_programs import Candidate, compiled
from tests.marks import slow_lane_except
from tests.suite import Case

KERNEL = "__global__ void twice(float* x) { x[threadIdx.x] = min(INFINITY, 2.0f * x[threadIdx.x]); }"
CUDA_MACHINE = 190
# Arithmetic, barriers, and loads and stores of memory.
WORK = ("HMMA", "FFMA", "BAR", "LDSM", "LDS", "STS", "LDGSTS", "LDG", "STG")

COMPILER = find_compiler()
IS_LIBRARY = COMPILER is not None and bool(COMPILER.headers)
pytestmark = pytest.mark.skipif(not IS_LIBRARY, reason="nvidia-cuda-nvrtc is not installed")


def test_nvrtc_returns_machine_code_and_its_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", start)
    assert compiler_version().startswith("13.")
    cubin, resources = compile_cubin(KERNEL, "sm_80")
    assert (cubin[:4], cubin[18]) == (b"\x7fELF", CUDA_MACHINE)
    assert isinstance(resources, Resources)
    assert resources.registers > 0


@pytest.mark.parametrize(
    ("source", "arch", "says"),
    [
        (KERNEL, "sm_53", "CUDA 13 compiles nothing for sm_53"),
        ("__global__ void broken() { x; }", "sm_80", 'identifier "x" is undefined'),
    ],
)
def test_nvrtcs_refusal_has_a_reason(source: str, arch: str, says: str) -> None:
    with pytest.raises(NvccError, match=says):
        compile_cubin(source, arch)


def test_a_models_kernels_are_compiled_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [KERNEL.replace("twice", f"kernel_{number}") for number in range(nvrtc.MODEL_KERNELS)]
    declared = [kernel.partition("{")[0] + ";" for kernel in kernels]  # as TVM does first
    passed: list[str] = []

    def strings(flags: Sequence[str]) -> object:
        passed.extend(flags)
        return (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))

    monkeypatch.setattr(nvrtc, "_strings", strings)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    compile_cubin("\n".join(declared[:-1] + kernels[:-1]), "sm_80")
    assert not any("split" in flag for flag in passed), "a candidate"
    cubin, resources = compile_cubin("\n".join(declared + kernels), "sm_80")
    assert "-split-compile=3" in passed
    assert all(b".text._Z8kernel_%dPf" % number in cubin for number in range(len(kernels)))
    assert resources is not None, "the compiler reports them too"


def test_a_toolkit_without_headers_compiles_by_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC finds no headers by itself. PyTorch's packages bring it without them."""
    for name in ("lib", "bin", "include/cccl"):
        (tmp_path / name).mkdir(parents=True)
    library, program = tmp_path / "lib" / NVRTC, tmp_path / "bin" / "nvcc"
    library.touch()
    program.touch(mode=0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_compiler() == CudaCompiler(program)
    header = tmp_path / "include" / "cuda_fp16.h"
    header.touch()
    assert find_compiler() == CudaCompiler(library, (header.parent, header.parent / "cccl"))
    monkeypatch.setattr("system.nvcc._toolkits", lambda: [tmp_path / "none"])
    monkeypatch.setenv("PATH", os.devnull)
    assert find_compiler() is None
    with pytest.raises(NvccError, match="install tunefarm's extra 'cuda'"):
        compile_cubin(KERNEL, "sm_80")


def test_a_kernel_that_needs_the_library_keeps_its_headers() -> None:
    tvms = "#ifdef __CUDACC_RTC__\n#include <cuda/std/cstdint>\n#else\n#include <cuda.h>\n#endif\n"
    assert "#include" not in nvrtc.with_few_headers(f"{tvms}__global__ void kernel(int64_t* x) {{}}")
    templates = f"{tvms}template <typename T> using Same = std::is_same<T, float>;"
    assert nvrtc.with_few_headers(templates) == templates


@pytest.mark.slow
@pytest.mark.skipif(find_nvcc() is None or find_nvdisasm() is None, reason="no nvcc or no nvdisasm")
@pytest.mark.parametrize("dtype", slow_lane_except(["float16", "float32"], "float16", seconds=5))
def test_nvrtc_and_nvcc_emit_the_same_work(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their front ends compute a few addresses in other ways."""
    case = Case("GMM", (64, 64, 64), dtype=dtype)
    kind = StageKind.TILED if dtype == "float32" else StageKind.TENSOR
    sketch = next(one for one in generate(read_dag(case.module()), GPU) if one.of_kind(kind))
    candidate = compiled(case, sample(sketch, 64, np.random.default_rng(0)).program(20))
    assert isinstance(candidate, Candidate), candidate
    assert "cuda/std" not in nvrtc.with_few_headers(candidate.source)
    (tmp_path / "nvrtc").write_bytes(compile_cubin(candidate.source, "sm_90")[0])
    program = find_nvcc()
    assert program is not None
    monkeypatch.setattr(nvcc, "find_compiler", lambda: CudaCompiler(program))
    (tmp_path / "nvcc").write_bytes(compile_cubin(candidate.source, "sm_90")[0])
    in_process, by_program = instructions(tmp_path / "nvrtc"), instructions(tmp_path / "nvcc")
    work = [name for name in WORK if by_program[name]]
    assert len(work) > 1
    assert {name: in_process[name] for name in work} == {name: by_program[name] for name in work}
