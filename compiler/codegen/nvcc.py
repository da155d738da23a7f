"""Compile CUDA C to machine code of a GPU, which need not be in this machine: by nvcc, or else by NVRTC.

nvcc comes from the packages of the extra `cuda` or from a toolkit of the host. TVM calls it through a
function of its registry, which `register` replaces: what is compiled is a cubin for the target's capability,
and the compiler's report on it is kept.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm_ffi
from tvm.support import nvcc as tvm_nvcc
from tvm.target import Target

HOST_TOOLKIT = Path("/usr/local/cuda")
# As TVM calls nvcc.
FLAGS = (
    *("--cubin", "-O3", "--use_fast_math", "--expt-relaxed-constexpr", "-diag-suppress=177"),
    *("-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__"),
    *("-U__CUDA_NO_BFLOAT16_OPERATORS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__"),
    "-Xptxas=-v",
)
_RELEASE = re.compile(r"release (\d+\.\d+)")
_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_SPILLED = re.compile(r"(\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class NvccError(RuntimeError):
    """CUDA C can't be compiled. The message says why, or what to install."""


@dataclass(frozen=True)
class KernelReport:
    """The resources of a kernel: 32-bit registers of a thread, bytes of registers that a thread had to spill
    to memory, and bytes of a block's shared memory."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def find_nvcc() -> Path | None:
    """Return the nvcc of the toolkit that CUDA_HOME names, of the packages, on the path, or of the host."""
    named, on_path = os.environ.get("CUDA_HOME"), shutil.which("nvcc")
    places = [Path(named) / "bin" / "nvcc"] if named else []
    places += [toolkit / "bin" / "nvcc" for toolkit in _packaged_toolkits()]
    places += [Path(on_path)] if on_path else []
    places.append(HOST_TOOLKIT / "bin" / "nvcc")
    return next((place for place in places if os.access(place, os.X_OK)), None)


def compile_cubin(source: str, arch: str) -> tuple[bytes, dict[str, KernelReport]]:
    """Compile CUDA C for an architecture such as sm_80; return the cubin, and the report on each kernel.

    Raises NvccError, whose message ends with what the compiler says.
    """
    nvcc = find_nvcc()
    if nvcc is None:
        raise NvccError(
            "there is no nvcc to compile for GPUs with: install tunefarm's extra 'cuda', "
            "or set CUDA_HOME to a toolkit"
        )
    with tempfile.TemporaryDirectory(prefix="tunefarm-nvcc-") as folder:
        path, cubin = Path(folder) / "kernels.cu", Path(folder) / "kernels.cubin"
        path.write_text(source)
        command = [str(nvcc), *FLAGS, f"-arch={arch}", "-o", str(cubin), str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise NvccError(f"{nvcc} can't be started: {error.strerror}") from error
        said = (done.stdout + done.stderr).strip()
        if done.returncode:
            raise NvccError(f"nvcc refuses what TVM generated: {said[-1500:]}")
        return cubin.read_bytes(), read_report(said)


def compiler_version() -> str:
    """Return the version of nvcc, such as 13.0; empty where there is none."""
    nvcc = find_nvcc()
    if nvcc is None:
        return ""
    said = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True).stdout
    found = _RELEASE.search(said)
    return found[1] if found else ""


def read_report(text: str) -> dict[str, KernelReport]:
    """Return what ptxas says of each kernel with -v."""
    reports = {}
    _, *parts = _KERNEL.split(text)
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        registers, spilled, shared = (found.search(said) for found in (_USED, _SPILLED, _SHARED))
        if registers is not None:
            reports[name] = KernelReport(
                int(registers[1]), int(spilled[1]) if spilled else 0, int(shared[1]) if shared else 0
            )
    return reports


def last_reports() -> Mapping[str, KernelReport]:
    """Return the reports on the kernels that this thread compiled last; none where NVRTC compiled them."""
    return getattr(_of_thread, "reports", {})


def register() -> None:
    """Have TVM compile CUDA C by this module."""
    tvm_ffi.register_global_func("tvm_callback_cuda_compile", _compile, override=True)


_of_thread = threading.local()


def _compile(source: str) -> bytes:
    """Compile for the current target, as TVM asks for."""
    if find_nvcc() is None and importlib.util.find_spec("cuda") is not None:
        _of_thread.reports = {}
        return bytes(tvm_nvcc.compile_cuda(source, target_format="cubin", compiler="nvrtc"))
    cubin, _of_thread.reports = compile_cubin(source, str(Target.current().attrs["arch"]))
    return cubin


def _packaged_toolkits() -> list[Path]:
    """Return the toolkits that NVIDIA's packages make up, the newest first."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    return sorted((path for folder in folders for path in folder.glob("cu[0-9]*")), reverse=True)
