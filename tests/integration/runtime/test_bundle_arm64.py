"""A bundle for aarch64: its C example is built by a cross compiler and runs in an emulated arm64 Debian."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tunefarm_runtime import load
from tunefarm_runtime.bundle import make_bundle

from compiler.importing.model import fuse_untuned, read_onnx
from compiler.packaging.artifact import Manifest, build_library
from tests import arm64, debian
from tests.compiled_models import compile_model
from tests.onnx_models import residual

CHECKOUT = Path(__file__).parents[3]
LIBRARIES = CHECKOUT / "runtime" / "tunefarm_runtime" / "lib" / "aarch64"
TARGET = '{"kind":"llvm","mtriple":"aarch64-linux-gnu","mcpu":"cortex-a72","num-cores":1}'
GCC = "aarch64-linux-gnu-gcc"
OBSTACLE = arm64.obstacle()
pytestmark = [
    pytest.mark.slow_lane(seconds=3),
    pytest.mark.timeout(900),
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (LIBRARIES / "libtvm_ffi.so").exists():
        folder = tmp_path_factory.mktemp("wheels")
        command = [sys.executable, str(CHECKOUT / "runtime" / "build.py"), "--arch", "aarch64"]
        subprocess.run([*command, "--output", str(folder)], check=True)
    model, made = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("bundle")
    imported = read_onnx(residual(), {})
    build_library(fuse_untuned(imported, TARGET), TARGET, model / "model.so")
    manifest = Manifest(
        *("net", "sha", TARGET, "class", imported.inputs, imported.outputs),
        threads=1,
        versions={},
        created_at=0.0,
    )
    (model / "manifest.json").write_text(manifest.to_json())
    make_bundle(model, made)
    return made


@pytest.mark.parametrize("compiler", ["gcc", "zig"])
def test_the_c_example_runs_on_arm64(bundle: Path, compiler: str, tmp_path: Path) -> None:
    command = {
        "gcc": [GCC],
        "zig": [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.36"],
    }
    if shutil.which(command[compiler][0]) is None:
        pytest.skip(f"not installed: {GCC} (package gcc-aarch64-linux-gnu)")
    sources = [str(bundle / name) for name in ("main.c", "tunefarm.c")]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(bundle), "-I", str(bundle / "include")]
    libraries = [f"-L{bundle / 'lib'}", "-l:libtvm_ffi.so", "-ldl", "-Wl,-rpath,/mnt/lib"]
    main = bundle / f"main-{compiler}"
    subprocess.run([*command[compiler], *flags, *sources, *libraries, "-o", str(main)], check=True)
    root = arm64.bare()
    (root / "mnt").mkdir(exist_ok=True)
    process = debian.start(root, [f"/mnt/{main.name}", "/mnt"], {}, bound={"/mnt": bundle})
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    (expected,) = load(compile_model(residual(), tmp_path / "here"))(np.ones((1, 3, 8, 8), np.float32))
    found = [float(word) for word in text.partition(":")[2].split()]
    np.testing.assert_allclose(found, expected.ravel()[:5], rtol=1e-4)


def test_the_manifest_names_the_architecture(bundle: Path) -> None:
    target = json.loads((bundle / "manifest.json").read_text())["target"]
    assert json.loads(target)["mtriple"] == "aarch64-linux-gnu"
    for library in (bundle / "lib").iterdir():
        assert library.read_bytes()[18:20] == b"\xb7\x00", library  # ELF's number for aarch64
