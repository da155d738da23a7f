"""A checkout travels to a machine without a network: what is packed can be unpacked and found there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu import pack
from benchmarks.gpu.requirements import ROOMS

COMPILER = bytes(range(256)) * 4


@pytest.mark.slow
def test_what_is_packed_is_found_after_it_was_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "FIRST_BYTES", 100)  # so that both folders have a part of the compiler
    monkeypatch.setattr(pack, "FOLDERS", ROOMS)
    compiler = tmp_path / "tvm"
    (compiler / "lib").mkdir(parents=True)
    (compiler / "__init__.py").write_text("NAME = 'TVM'")
    (compiler / "lib/libtvm_compiler.so").write_bytes(COMPILER)
    wanted: list[str] = []

    def download(names: Sequence[str], folder: Path, python: str) -> None:
        wanted.extend(names)
        folder.mkdir()
        with zipfile.ZipFile(folder / f"packed-1-py{python}.whl", "w") as wheel:
            wheel.writestr("packed/__init__.py", "NAME = 'a wheel'")

    sizes = pack.pack(tmp_path / "packed", compiler, "3.12", download)
    assert set(sizes) == {"1", "2"}
    assert any(name.startswith("celery==") for name in wanted)
    assert not {name.partition("==")[0] for name in wanted} & {"numpy", "tunefarm", "apache-tvm"}
    assert pack.pack(tmp_path / "packed", compiler, "3.12", download).keys() == sizes.keys()

    first, second, target = tmp_path / "packed/1", tmp_path / "packed/2", tmp_path / "on another machine"
    unpack = [sys.executable, str(second / "unpack.py"), str(first), str(second), str(target)]
    subprocess.run(unpack, check=True)
    assert (target / "site/tvm/lib/libtvm_compiler.so").read_bytes() == COMPILER
    probe = f"import packed, tvm, {', '.join(ROOMS)}; print(packed.NAME, tvm.NAME, tunefarm.__file__)"
    script = f'. "$1"; exec "$2" -P -S -c "{probe}"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(target / "environment"), sys.executable],
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=3)[:3] == ["a", "wheel", "TVM"]
    assert str(target / "checkout") in done.stdout
