"""Find NVIDIA's compilers: in the packages of the extra `cuda`, or in a toolkit of the host."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

HOST_TOOLKIT = Path("/usr/local/cuda")
NVRTC = "libnvrtc.so.13"


def find_nvcc() -> Path | None:
    """Return nvcc's path: of the toolkit in CUDA_HOME, of the packages, on the PATH, or of the host's
    toolkit."""
    *named, host = _toolkits()
    on_path = shutil.which("nvcc")
    places = [toolkit / "bin" / "nvcc" for toolkit in named]
    places += [Path(on_path)] if on_path else []
    places.append(host / "bin" / "nvcc")
    return next((place for place in places if os.access(place, os.X_OK)), None)


def find_nvrtc() -> Path | None:
    """Return the path of the first toolkit's NVRTC library."""
    places = (toolkit / folder / NVRTC for toolkit in _toolkits() for folder in ("lib", "lib64"))
    return next((place for place in places if place.exists()), None)


def find_headers() -> list[Path]:
    """Return the folders of CUDA's headers for GPU code, of the first toolkit that has them."""
    for toolkit in _toolkits():
        include = toolkit / "include"
        if (include / "cuda_fp16.h").exists() and (include / "cccl").exists():
            return [include, include / "cccl"]
    return []


def _toolkits() -> list[Path]:
    """Return the toolkits of CUDA_HOME, of NVIDIA's packages (the newest first) and of the host."""
    named, found = os.environ.get("CUDA_HOME"), importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    packaged = sorted((path for folder in folders for path in folder.glob("cu[0-9]*")), reverse=True)
    return [*([Path(named)] if named else []), *packaged, HOST_TOOLKIT]
