"""Run this machine's Python on another x86 processor by user-mode emulation. /proc/cpuinfo stays the real
processor's."""

from __future__ import annotations

import platform
import shlex
import shutil
import sys
from pathlib import Path

QEMU = "qemu-x86_64-static"


def obstacle() -> str | None:
    """Return why no processor can be emulated here; None if one can."""
    if platform.machine() != "x86_64":
        return "needs an x86-64 machine"
    return None if shutil.which(QEMU) else f"not installed: {QEMU} (package qemu-user-static)"


def python(folder: Path, processor: str) -> Path:
    """Write a program into the folder that runs this Python on a processor, named as for qemu's `-cpu`."""
    program = folder / "python"
    # OpenBLAS mistakes an emulated Nehalem for a Haswell, and crashes.
    environment = "OPENBLAS_CORETYPE=Nehalem"
    emulator = shlex.join([QEMU, "-cpu", processor, sys.executable])
    program.write_text(f'#!/bin/sh\nexport {environment}\nexec {emulator} "$@"\n')
    program.chmod(0o755)
    return program
