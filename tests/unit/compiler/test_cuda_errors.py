"""CUDA errors in the messages of TVM's runtime."""

from __future__ import annotations

import pytest

from compiler.measuring.cuda_errors import explain
from core.measurement import Outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory", Outcome.OUT_OF_MEMORY),
        (
            "CUDALaunch Error: CUDA_ERROR_ILLEGAL_ADDRESS\n grid=(1,1,1)\n// CUDA Source",
            Outcome.ILLEGAL_ACCESS,
        ),
        ("CUDALaunch Error: CUDA_ERROR_UNKNOWN\n grid=(1,1,1)", Outcome.DEVICE_LOST),
        ("CUDALaunch Error: CUDA_ERROR_INVALID_VALUE\n grid=(1,1,1)", Outcome.LAUNCH_ERROR),
        (
            "CUDA Runtime Error: cudaErrorLaunchFailure (719): unspecified launch failure",
            Outcome.LAUNCH_ERROR,
        ),
        ("cuModuleLoadData(...) failed with error: CUDA_ERROR_NO_BINARY_FOR_GPU", Outcome.LAUNCH_ERROR),
    ],
)
def test_every_error_has_an_outcome_and_a_line(text: str, outcome: Outcome) -> None:
    assert explain(RuntimeError(f"Check failed\n{text}")) == (outcome, text.splitlines()[0])


def test_only_cuda_errors_are_explained() -> None:
    assert explain(RuntimeError("out of memory")) is None
