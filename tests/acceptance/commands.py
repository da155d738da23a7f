"""Run the command line as a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil


def tunefarm(arguments: Sequence[object], environment: dict[str, str], cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tunefarm", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def done(process: subprocess.Popen[str]) -> str:
    """Wait for the process to succeed; return what it printed."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def family(of: int, module: str) -> list[psutil.Process]:
    """Return the descendants that run `python -m MODULE`, the youngest last."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if module in words and "tunefarm.embedded.die_with_parent" not in words:
            found.append(process)
    return found
