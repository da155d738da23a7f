"""Compile CUDA C by NVRTC, NVIDIA's compiler as a library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from system.nvcc import find_headers

# Headers that nvcc includes by itself, and a macro that its host compiler defines.
_PREAMBLE = """\
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
"""
# Functions without a qualifier are device functions, because there is no host code.
FLAGS = ("-default-device", "--use_fast_math", "--ptxas-options=-v")


class NvrtcError(RuntimeError):
    """NVRTC can't compile the CUDA C, or CUDA's headers are missing. The message says why."""


def compile_source(library: Path, source: str, arch: str) -> tuple[bytes, str]:
    """Compile CUDA C for an architecture such as sm_80; return the cubin and the compiler's log.

    `library` is the loaded NVRTC. Raises NvrtcError.
    """
    headers = find_headers()
    if not headers:
        raise NvrtcError(
            "NVRTC needs CUDA's headers: install nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl"
        )
    nvrtc = _load(library)
    program = ctypes.c_void_p()
    text = (_PREAMBLE + source).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    try:
        flags = [f"-arch={arch}", *FLAGS, *(f"-I{folder}" for folder in headers)]
        failed = nvrtc.nvrtcCompileProgram(program, len(flags), _strings(flags))
        said = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if failed:
            raise NvrtcError(said or f"error {failed}")
        return _read(nvrtc, program, "CUBIN"), said
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def version(library: Path) -> str:
    """Return the version of NVRTC, such as 13.0."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _load(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _load(library: Path) -> ctypes.CDLL:
    # NVRTC opens this library by name. The dynamic linker finds it once it is loaded.
    for builtins in library.parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(library))


def _strings(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data.raw
