"""Compile for GPUs without nvcc."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.codegen import nvcc
from compiler.codegen.nvcc import NvccError, compile_cubin, compiler_version
from compiler.reading.subgraph import read_dag
from core.measurement import Resources
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.stage import StageKind
from system.nvcc import find_headers, find_nvrtc
from tests.devices import GPU
from tests.gpu_programs import Candidate, compiled
from tests.suite import Case

KERNEL = "__global__ void twice(float* x) { x[threadIdx.x] = min(INFINITY, 2.0f * x[threadIdx.x]); }"
CUDA_MACHINE = 190

pytestmark = pytest.mark.skipif(find_nvrtc() is None, reason="nvidia-cuda-nvrtc is not installed")


@pytest.fixture(autouse=True)
def no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)


def test_nvrtc_returns_machine_code_and_its_resources() -> None:
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


def test_without_headers_it_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_headers()
    monkeypatch.setattr("compiler.codegen.nvrtc.find_headers", list)
    with pytest.raises(NvccError, match="install nvidia-cuda-runtime"):
        compile_cubin(KERNEL, "sm_80")


@pytest.mark.slow_lane(seconds=15)
def test_nvrtc_compiles_tvms_code_for_tensor_cores() -> None:
    case = Case("GMM", (64, 64, 64), dtype="float16")
    sketch = next(one for one in generate(read_dag(case.module()), GPU) if one.of_kind(StageKind.TENSOR))
    candidate = compiled(case, sample(sketch, 64, np.random.default_rng(0)).program(20))
    assert isinstance(candidate, Candidate), candidate
    assert compile_cubin(candidate.source, "sm_80")[0]
