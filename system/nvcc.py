"""Find NVIDIA's compilers: in the packages of the extra `cuda`, or in a toolkit of the host."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOST_TOOLKIT = Path("/usr/local/cuda")
NVRTC = "libnvrtc.so.13"


@dataclass(frozen=True)
class CudaCompiler:
    """A compiler of CUDA C. `path` is NVRTC's library, with the folders of CUDA's `headers`, or the program
    nvcc, which finds its headers by itself.
    """

    path: Path
    headers: tuple[Path, ...] = ()


def find_compiler() -> CudaCompiler | None:
    """Return the compiler of the first place that has one: the toolkit in CUDA_HOME, the packages, the PATH,
    the host's toolkit.

    A toolkit's NVRTC comes before its nvcc, because it starts no processes and reads fewer headers.
    """
    *named, host = _toolkits()
    on_path = shutil.which("nvcc")
    found = [one for toolkit in named for one in _compilers(toolkit)]
    found += [CudaCompiler(Path(on_path))] if on_path else []
    return next(iter([*found, *_compilers(host)]), None)


def find_nvcc() -> Path | None:
    """Return nvcc's path in the first toolkit that has it."""
    return next((nvcc for toolkit in _toolkits() for nvcc in _nvcc(toolkit)), None)


def _compilers(toolkit: Path) -> Iterator[CudaCompiler]:
    include = toolkit / "include"
    if (include / "cuda_fp16.h").exists() and (include / "cccl").exists():
        for library in (toolkit / "lib" / NVRTC, toolkit / "lib64" / NVRTC):
            if library.exists():
                yield CudaCompiler(library, (include, include / "cccl"))
    yield from map(CudaCompiler, _nvcc(toolkit))


def _nvcc(toolkit: Path) -> Iterator[Path]:
    nvcc = toolkit / "bin" / "nvcc"
    if os.access(nvcc, os.X_OK):
        yield nvcc


def _toolkits() -> list[Path]:
    """Return the toolkits of CUDA_HOME, of NVIDIA's packages (the newest first) and of the host."""
    named, found = os.environ.get("CUDA_HOME"), importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    packaged = sorted((path for folder in folders for path in folder.glob("cu[0-9]*")), reverse=True)
    return [*([Path(named)] if named else []), *packaged, HOST_TOOLKIT]
