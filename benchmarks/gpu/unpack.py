"""Unpack what `benchmarks.gpu.pack` packed, on a machine with a GPU that has no network. Needs nothing but
Python.

    python3 FOLDER/2/unpack.py FOLDER/1 FOLDER/2 TARGET
    . TARGET/environment
    cd TARGET/checkout && python3 -m benchmarks.gpu --seconds 540 --json FILE

`python3` may be the interpreter of an environment with PyTorch and JAX, which are then compared with.
"""

from __future__ import annotations

import lzma
import shlex
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    *folders, target = map(Path, sys.argv[1:] if argv is None else argv)
    unpack(folders, target.absolute())
    return 0


def unpack(folders: Sequence[Path], target: Path) -> None:
    """Unpack the packages into `target/site` and the checkout into `target/checkout`. Write a shell script
    `target/environment` that puts both on Python's path."""
    site, checkout = target / "site", target / "checkout"
    for wheel in sorted(path for folder in folders for path in folder.glob("wheels/*.whl")):
        zipfile.ZipFile(wheel).extractall(site)
    for name, place in (("tvm.tar.xz", site), ("checkout.tar.xz", checkout)):
        for file in (folder / name for folder in folders if (folder / name).exists()):
            with tarfile.open(file) as packed:
                packed.extractall(place, filter="data")
    parts = sorted(path for folder in folders for path in folder.glob("compiler.xz.*"))
    compiler = lzma.decompress(b"".join(part.read_bytes() for part in parts))
    (site / "tvm/lib/libtvm_compiler.so").write_bytes(compiler)
    path = shlex.quote(f"{checkout}:{site}")
    (target / "environment").write_text(
        f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONUNBUFFERED=1\n"
    )


if __name__ == "__main__":
    sys.exit(main())
