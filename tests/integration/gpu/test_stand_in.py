"""The stand-in's own driver, by its C interface."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.cuda_emulator.driver import StandIn

# Prints what the driver answers when each module is asked for its kernel, all of them loaded.
LOAD = """
import ctypes, sys
from pathlib import Path
driver = ctypes.CDLL("libcuda.so.1")
assert driver.cuInit(0) == 0
modules = {}
for name in sys.argv[1:]:
    modules[name] = ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(modules[name]), Path(name + ".cubin").read_bytes()) == 0
for name, module in modules.items():
    print(name, driver.cuModuleGetFunction(ctypes.byref(ctypes.c_void_p()), module, name.encode()))
"""


def test_modules_loaded_side_by_side_keep_their_kernels(stand_in: StandIn, tmp_path: Path) -> None:
    environment = {**os.environ, **stand_in.environment}
    nvcc = Path(stand_in.environment["CUDA_HOME"]) / "bin" / "nvcc"
    for name in ("first", "second"):
        source = tmp_path / f"{name}.cu"
        source.write_text(f'extern "C" __global__ void {name}(float* values) {{ values[0] = 1; }}\n')
        command = [str(nvcc), "--cubin", "-arch=sm_80", "-o", str(source.with_suffix(".cubin")), str(source)]
        subprocess.run(command, env=environment, check=True)
    command = [sys.executable, "-c", LOAD, "first", "second"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["first", "0", "second", "0"]
