"""Executes AMX's instructions in this process, on a processor without them (emulator.c). A processor that has
them executes them itself.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from system.linux import request_tiles

COMPILER = "gcc"
FEATURES = ("amx_bf16", "amx_int8", "amx_tile")
# The kinds of instructions that emulator.c counts, in its order.
KINDS = ("configure", "release", "load", "store", "multiply")


def obstacle() -> str | None:
    """Return why AMX's instructions can't be executed here; None if they can."""
    if platform.machine() != "x86_64":
        return "this is no x86_64"
    if _has_tiles():
        try:
            request_tiles()
        except OSError as error:
            return f"Linux doesn't let this process use AMX: {error}"
        return None
    if "fma" not in Path("/proc/cpuinfo").read_text().split():
        return "this processor has no FMA"
    return None if shutil.which(COMPILER) else f"not installed: {COMPILER}"


def _has_tiles() -> bool:
    return "amx_tile" in Path("/proc/cpuinfo").read_text().split()


@contextmanager
def emulated() -> Iterator[dict[str, int]]:
    """Execute AMX's instructions. At the end, the dictionary has the number of executed instructions; without
    the emulator, it is empty.
    """
    if _has_tiles():
        yield {}
        return
    library = _library()
    counts: dict[str, int] = {}
    assert library.amx_install() == 0
    for kind in range(len(KINDS)):
        library.amx_take_count(kind)
    try:
        yield counts
    finally:
        assert library.amx_remove() == 0
        counts |= {name: library.amx_take_count(kind) for kind, name in enumerate(KINDS)}


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).with_suffix(".c")
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "amx.so")
        options = ["-O2", "-mfma", "-shared", "-fPIC"]
        subprocess.run([COMPILER, *options, "-o", built, source, "-lm"], check=True, timeout=60)
        library = ctypes.CDLL(str(built))
    library.amx_take_count.restype = ctypes.c_long
    return library
