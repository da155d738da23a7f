"""Compile CUDA C by NVRTC, NVIDIA's compiler as a library. Several threads may compile at the same time."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path

from system.nvcc import CudaCompiler

# TVM includes CUDA's C++ library for types of integers and for templates that few kernels use. Reading it
# takes several times longer than compiling a kernel.
_LIBRARY = re.compile(r"#ifdef __CUDACC_RTC__\n.*?#include <cuda\.h>\n#endif\n", re.DOTALL)
_TYPES = """\
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
"""
# What nvcc's host compiler defines, and GNU's spelling of assembly.
_PREAMBLE = """\
#define INFINITY __int_as_float(0x7f800000)
#define __asm__ asm
#define __volatile__ volatile
"""
# Functions without a qualifier are device functions, because there is no host code.
FLAGS = ("-default-device", "--use_fast_math", "--ptxas-options=-v")
_KERNEL = re.compile(r"__global__[^;{]*\{")
# Sources with so many kernels are models', and compiled on all cores. Candidates have fewer, and several are
# compiled at once.
MODEL_KERNELS = 4


class NvrtcError(RuntimeError):
    """NVRTC can't compile the CUDA C. The message says why."""


def compile_source(compiler: CudaCompiler, source: str, arch: str) -> tuple[bytes, str]:
    """Compile CUDA C for an architecture such as sm_80; return the cubin and the compiler's log.

    Raises NvrtcError.
    """
    nvrtc = _load(compiler.path)
    program = ctypes.c_void_p()
    text = (_PREAMBLE + with_few_headers(source)).encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
    try:
        flags = [f"-arch={arch}", *FLAGS, *_split(source), *(f"-I{folder}" for folder in compiler.headers)]
        failed = nvrtc.nvrtcCompileProgram(program, len(flags), _strings(flags))
        said = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
        if failed:
            raise NvrtcError(said or f"error {failed}")
        return _read(nvrtc, program, "CUBIN"), said
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _split(source: str) -> list[str]:
    """Return the flag with which the kernels of a model are compiled in parallel."""
    kernels = len(_KERNEL.findall(source))
    threads = min(kernels, len(os.sched_getaffinity(0)))
    return [f"-split-compile={threads}"] if kernels >= MODEL_KERNELS else []


def with_few_headers(source: str) -> str:
    """Replace TVM's headers of the C++ library by the types that kernels use. Sources that use more of the
    library keep them.

        #include <cuda/std/cstdint>
    ->
        using int8_t = signed char;
    """
    shorter = _LIBRARY.sub(_TYPES, source)
    return source if "std::" in shorter else shorter


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
