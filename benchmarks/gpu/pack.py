"""Pack this checkout, TVM and what they need for a machine with a GPU that has no network.

    python -m benchmarks.gpu.pack FOLDER --python 3.12

Writes two folders, FOLDER/1 and FOLDER/2, each of less than 64 MiB; `FOLDER/2/unpack.py` unpacks them.
The machine must have NumPy, SciPy and ONNX, which are too large. The first call downloads wheels and
compresses TVM's compiler, which takes minutes. Later calls pack the checkout anew.
"""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import tvm

from benchmarks.gpu import unpack
from benchmarks.gpu.requirements import ROOMS, required_packages

CHECKOUT = Path(__file__).parents[2]
MAX_BYTES = 64 << 20
# Packages of the machine: they are in every environment with PyTorch for science, and large.
GIVEN = frozenset({"numpy", "scipy", "onnx", "apache-tvm"})
# The bytes of the compressed compiler in the first folder. The second one has much else.
FIRST_BYTES = 50 << 20
PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)), "manylinux2014_x86_64")
FOLDERS = (*ROOMS, "benchmarks", "examples", "tests", "pyproject.toml")
# Downloads wheels of requirements into a folder.
Download = Callable[[Sequence[str], Path, str], None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("benchmarks.gpu.pack", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU [3.12]")
    args = parser.parse_args(argv)
    sizes = pack(args.folder, Path(tvm.__file__).parent, args.python, download)
    for name, size in sizes.items():
        print(f"{name}: {size / (1 << 20):.1f} MiB")
    return int(max(sizes.values()) > MAX_BYTES)


def pack(folder: Path, compiler: Path, python: str, download: Download) -> dict[str, int]:
    """Pack into `folder` TVM, whose package is the folder `compiler`. Return the bytes of both folders."""
    first, second = folder / "1", folder / "2"
    first.mkdir(parents=True, exist_ok=True)
    second.mkdir(exist_ok=True)
    if not (second / "tvm.tar.xz").exists():
        packed = lzma.compress((compiler / "lib/libtvm_compiler.so").read_bytes(), preset=9)
        (first / "compiler.xz.0").write_bytes(packed[:FIRST_BYTES])
        (second / "compiler.xz.1").write_bytes(packed[FIRST_BYTES:])
        download(requirements(), second / "wheels", python)
        with tarfile.open(second / "tvm.tar.xz", "w:xz") as file:
            for path in (compiler, *compiler.parent.glob("apache_tvm-*.dist-info")):
                file.add(path, path.name, filter=_without_compiler)
    archive = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD", *FOLDERS], cwd=CHECKOUT, capture_output=True, check=True
    )
    (second / "checkout.tar.xz").write_bytes(lzma.compress(archive.stdout))
    shutil.copy(unpack.__file__, second / "unpack.py")
    return {one.name: sum(file.stat().st_size for file in _files(one)) for one in (first, second)}


def requirements() -> list[str]:
    """Return what is downloaded: the packages that tunefarm requires, in the versions of constraints.txt."""
    pins = {
        _normal(line.partition("==")[0]): line for line in (CHECKOUT / "constraints.txt").read_text().split()
    }
    names = sorted({_normal(name) for name in required_packages()} - GIVEN - {"tunefarm"})
    return [pins.get(name, name) for name in names]


def download(wanted: Sequence[str], folder: Path, python: str) -> None:
    platforms = [part for name in PLATFORMS for part in ("--platform", name)]
    command = [*(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:")]
    command += ["--python-version", python, "--implementation", "cp", *platforms, "-d", str(folder)]
    subprocess.run([*command, *wanted], check=True)


def _without_compiler(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if info.name.endswith(("/libtvm_compiler.so", "/__pycache__")) else info


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
