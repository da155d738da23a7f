"""The disk space of tunefarm-runtime: installed by pip, and in a bundle for C."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Packages that a user of NumPy has anyway.
NUMPY = ("numpy", "numpy.libs", "bin")


def install_runtime(folder: Path) -> Path:
    """Build the wheel of tunefarm-runtime for this machine, and install it with everything it needs.

    Returns the folder that pip filled. Raises RuntimeError where pip fails.
    """
    wheels, site = folder / "wheels", folder / "site"
    _run([str(ROOT / "runtime/build.py"), "--arch", platform.machine(), "--output", str(wheels)])
    [wheel] = wheels.glob("*.whl")
    pins = str(ROOT / "constraints.txt")
    _run(["-m", "pip", "install", "--quiet", "--constraint", pins, "--target", str(site), str(wheel)])
    return site


def sizes(site: Path) -> dict[str, int]:
    """Return the bytes of each package that pip installed, without NumPy."""
    return {
        entry.name: size(entry)
        for entry in sorted(site.iterdir())
        if entry.name not in NUMPY and not entry.name.startswith("numpy-")
    }


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _run(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")
