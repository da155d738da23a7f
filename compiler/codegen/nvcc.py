"""Compile CUDA C to a GPU's machine code by NVRTC, or else by nvcc. No GPU is needed.

The compiler comes from the packages of the extra `cuda` or from a CUDA toolkit on the machine. TVM calls it
through a function of its registry, which `register` replaces. The result is a cubin for the target's compute
capability. The compiler's report on registers and spills is kept.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import threading
from pathlib import Path

import tvm_ffi
from tvm.target import Target

from compiler.codegen import nvrtc
from compiler.codegen.warpgroups import architecture
from core.measurement import Resources
from system.nvcc import find_compiler

# Ten times the lowest compute capability that CUDA 13 supports.
OLDEST = 75
# The flags that TVM itself passes to nvcc.
FLAGS = (
    *("--cubin", "-O3", "--use_fast_math", "--expt-relaxed-constexpr", "-diag-suppress=177"),
    *("-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__"),
    *("-U__CUDA_NO_BFLOAT16_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__"),
    "-Xptxas=-v",
)
_RELEASE = re.compile(r"release (\d+\.\d+)")
_SPILLED = re.compile(r"(\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")


class NvccError(RuntimeError):
    """CUDA C can't be compiled. The message says why, or what to install."""


def compile_cubin(source: str, arch: str) -> tuple[bytes, Resources | None]:
    """Compile CUDA C for an architecture such as sm_80; return the cubin and the resources of its kernels.

    Raises NvccError, whose message ends with the compiler's output.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NvccError(
            "there is no compiler for GPUs: install tunefarm's extra 'cuda', or set CUDA_HOME to a toolkit"
        )
    arch = architecture(source, arch)
    if not compiler.headers:
        return _by_nvcc(compiler.path, source, arch)
    try:
        cubin, said = nvrtc.compile_source(compiler, source, arch)
    except nvrtc.NvrtcError as error:
        if "invalid value for --gpu-architecture" in str(error):
            raise NvccError(too_old(arch)) from error
        raise NvccError(f"NVRTC refuses what TVM generated: {str(error)[-1500:]}") from error
    return cubin, read_report(said)


def _by_nvcc(nvcc: Path, source: str, arch: str) -> tuple[bytes, Resources | None]:
    with tempfile.TemporaryDirectory(prefix="tunefarm-nvcc-") as folder:
        path, cubin = Path(folder) / "kernels.cu", Path(folder) / "kernels.cubin"
        path.write_text(source)
        # nvcc also compiles for sm_90 if `-arch` is sm_90a.
        generate = f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}"
        command = [str(nvcc), *FLAGS, generate, "-o", str(cubin), str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise NvccError(f"{nvcc} can't be started: {error.strerror}") from error
        said = (done.stdout + done.stderr).strip()
        if "Unsupported gpu architecture" in said:
            raise NvccError(too_old(arch))
        if done.returncode:
            raise NvccError(f"nvcc refuses what TVM generated: {said[-1500:]}")
        return cubin.read_bytes(), read_report(said)


def too_old(arch: str) -> str:
    """Return the error message for an architecture that CUDA doesn't support, such as sm_53."""
    return (
        f"CUDA 13 compiles nothing for {arch}, only for compute capability {OLDEST / 10} and newer: "
        "leave out --gpu, and measure the cores of the GPU's host"
    )


def compiler_version() -> str:
    """Return the version of nvcc or NVRTC, such as "13.0"; "" if neither is installed."""
    compiler = find_compiler()
    if compiler is None:
        return ""
    if compiler.headers:
        return nvrtc.version(compiler.path)
    said = subprocess.run([str(compiler.path), "--version"], capture_output=True, text=True).stdout
    found = _RELEASE.search(said)
    return found[1] if found else ""


def read_report(text: str) -> Resources | None:
    """Parse the output of `ptxas -v`; None if it reports no kernel."""
    registers, spilled = (max(map(int, found.findall(text)), default=0) for found in (_USED, _SPILLED))
    return Resources(registers, spilled) if registers else None


def last_resources() -> Resources | None:
    """Return the resources of the kernels that this thread compiled last; None if the compiler didn't report
    them.
    """
    return getattr(_of_thread, "resources", None)


def register() -> None:
    """Make TVM compile CUDA C by this module."""
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", _compile, override=True)


_of_thread = threading.local()


def _compile(source: str) -> bytes:
    """Compile for the current target. TVM calls this function."""
    cubin, _of_thread.resources = compile_cubin(source, str(Target.current().attrs["arch"]))
    return cubin
