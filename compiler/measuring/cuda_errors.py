"""The failures of a GPU, by the messages of CUDA in the exceptions that TVM raises."""

from __future__ import annotations

from core.measurement import Outcome

# TVM gives the text of an error of CUDA's runtime, and the name of one of the driver. The first that is found
# counts: a launch fails also for the reasons before it.
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
    Outcome.LAUNCH_ERROR: ("CUDA Runtime Error", "CUDALaunch Error", "CUDA_ERROR_"),  # whatever else
}
MAX_CHARS = 500


def explain(error: BaseException) -> tuple[Outcome, str] | None:
    """Return how a trial ended that raised this, and the line that says so; None when it isn't CUDA's error.

    TVM appends a kernel's source to the message, whose end therefore says nothing.
    """
    lines = str(error).splitlines()
    for outcome, texts in _SAID.items():
        for line in lines:
            if "CUDA" in line and any(text in line for text in texts):
                return outcome, line.strip()[:MAX_CHARS]
    return None
