"""Find NVIDIA's compiler, of the packages of the extra `cuda` or of a toolkit of the host."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

HOST_TOOLKIT = Path("/usr/local/cuda")


def find_nvcc() -> Path | None:
    """Return the nvcc of the toolkit that CUDA_HOME names, of the packages, on the path, or of the host."""
    named, on_path = os.environ.get("CUDA_HOME"), shutil.which("nvcc")
    places = [Path(named) / "bin" / "nvcc"] if named else []
    places += [toolkit / "bin" / "nvcc" for toolkit in _packaged_toolkits()]
    places += [Path(on_path)] if on_path else []
    places.append(HOST_TOOLKIT / "bin" / "nvcc")
    return next((place for place in places if os.access(place, os.X_OK)), None)


def _packaged_toolkits() -> list[Path]:
    """Return the toolkits that NVIDIA's packages make up, the newest first."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    return sorted((path for folder in folders for path in folder.glob("cu[0-9]*")), reverse=True)
