"""The released wheel: small, and enough to run a model where TVM isn't installed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.compiled_models import compile_model
from tests.onnx_models import residual

CHECKOUT = Path(__file__).parents[3]
MAX_INSTALLED_BYTES = 20e6
PROGRAM = """
import importlib.util, sys, numpy, tunefarm_runtime
assert importlib.util.find_spec("tvm") is None
model = tunefarm_runtime.load(sys.argv[1])
print(model(input=numpy.ones((1, 3, 8, 8), "float32"))[0].shape)
"""


@pytest.mark.slow_lane(seconds=18)
def test_the_wheel_runs_a_model_without_tvm(tmp_path: Path) -> None:
    machine = platform.machine()
    command = [sys.executable, str(CHECKOUT / "runtime" / "build.py"), "--arch", machine]
    subprocess.run([*command, "--output", str(tmp_path / "wheels")], check=True)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert f"tunefarm_runtime/lib/{machine}/libtvm_runtime.so" in names
    assert any(name.endswith("apache_tvm-LICENSE") for name in names)
    assert {name.split("/")[2] for name in names if "/lib/" in name} == {machine}
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pins = ["--constraint", str(CHECKOUT / "constraints.txt")]
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pins, str(wheel)], check=True)
    installed = next((tmp_path / "env" / "lib").glob("python3*/site-packages"))
    sizes = {
        name: sum(file.stat().st_size for file in (installed / name).rglob("*") if file.is_file())
        for name in ("tunefarm_runtime", "tvm_ffi")
    }
    assert sum(sizes.values()) <= MAX_INSTALLED_BYTES, sizes
    folder = compile_model(residual(), tmp_path / "residual")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", PROGRAM, str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.stdout == "(1, 10)\n", done.stderr
