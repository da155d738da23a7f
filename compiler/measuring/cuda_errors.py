"""Recognize GPU failures by CUDA's messages in TVM's exceptions."""

from __future__ import annotations

from core.measurement import Outcome

# TVM's message has the text of an error of CUDA's runtime, or the name of an error of the driver. The first
# match counts: a failed launch comes last, because the causes before it also make launches fail.
_SAID = {
    Outcome.OUT_OF_MEMORY: ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
    Outcome.ILLEGAL_ACCESS: (
        *("illegal memory access", "misaligned address", "invalid program counter", "illegal instruction"),
        *("CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_INVALID_ADDRESS_SPACE"),
        *("CUDA_ERROR_INVALID_PC", "CUDA_ERROR_ILLEGAL_INSTRUCTION"),
    ),
    Outcome.DEVICE_LOST: (
        *(
            "no CUDA-capable device",
            "driver version is insufficient",
            "device is lost",
            "busy or unavailable",
            "uncorrectable",
            "unknown error",
        ),
        *("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA_ERROR_ECC_UNCORRECTABLE"),
        *("CUDA_ERROR_UNKNOWN", "CUDA_ERROR_SYSTEM_NOT_READY", "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    ),
    Outcome.LAUNCH_ERROR: ("CUDA Runtime Error", "CUDALaunch Error", "CUDA_ERROR_"),  # any other error
}
MAX_CHARS = 500


def explain(error: BaseException) -> tuple[Outcome, str] | None:
    """Return a trial's outcome and the line that explains it; None if the error isn't CUDA's. The end of the
    message doesn't help, because TVM appends the kernel's source to it.
    """
    lines = str(error).splitlines()
    for outcome, texts in _SAID.items():
        for line in lines:
            if "CUDA" in line and any(text in line for text in texts):
                return outcome, line.strip()[:MAX_CHARS]
    return None
