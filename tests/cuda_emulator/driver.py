"""A stand-in for a GPU: libraries that replace NVIDIA's, and an nvcc whose cubins they can run. TVM's own
CUDA runtime runs on it. Its times are meaningless, so no figure comes from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from system.nvcc import find_nvcc
from tests.cuda_emulator.translate import prepare

HERE = Path(__file__).parent
# Sources of the libraries, by the names under which TVM and nvidia-ml-py look for them.
LIBRARIES = {"libcuda.so.1": "cuda.cc", "libnvidia-ml.so.1": "nvml.cc", "libcudart.so.13": "cudart.cc"}
VERSIONS = "libcudart.so.13 { global: cuda*; local: *; };"


class StandIn:
    """A stand-in in its own folder. Processes with `environment` see its GPU. `behave` sets its behaviour for
    processes that start later (see `cuda.cc` and `nvml.cc`).
    """

    def __init__(self, home: Path, libraries: Path) -> None:
        """`home` has the folder `bin` of nvcc."""
        self._home = home
        self._libraries = libraries

    @property
    def environment(self) -> Mapping[str, str]:
        libraries = [str(self._libraries), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "CUDA_HOME": str(self._home),
        }

    def behave(self, *lines: str) -> None:
        (self._libraries / "behaviour").write_text("".join(f"{line}\n" for line in lines))

    @property
    def barrier(self) -> Path:
        """The file at which kernels wait after `behave("launch 1 wait")`."""
        return self._libraries / "wait"

    def copy(self, folder: Path) -> StandIn:
        """Return a copy with its own behaviour."""
        shutil.copytree(self._libraries, folder)
        return StandIn(self._home, folder)


def build(folder: Path) -> StandIn:
    """Build a stand-in with g++ in a folder that is empty."""
    nvcc = find_nvcc()
    assert nvcc is not None, "the extra 'cuda' is installed"
    headers = nvcc.parents[1] / "include"
    libraries, programs = folder / "lib", folder / "bin"
    libraries.mkdir()
    programs.mkdir()
    versions = folder / "versions"
    versions.write_text(VERSIONS)
    for name, source in LIBRARIES.items():
        command = ["g++", "-O1", "-Wall", "-shared", "-fPIC", "-std=c++17", f"-Wl,-soname,{name}"]
        command += [f"-isystem{headers}", str(HERE / source), "-o", str(libraries / name)]
        if source == "cudart.cc":
            command += [f"-Wl,--version-script={versions}", f"-L{libraries}", "-l:libcuda.so.1"]
        subprocess.run(command, check=True)
    for name in ("nvcc.py", "translate.py"):
        shutil.copy(HERE / name, programs)
    prepare(programs, headers)
    call = [sys.executable, str(programs / "nvcc.py"), str(nvcc), str(headers)]
    wrapper = programs / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(call)} "$@"\n')
    wrapper.chmod(0o755)
    return StandIn(folder, libraries)
