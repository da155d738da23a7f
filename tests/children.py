"""Find and kill the compiler's child processes, as the kernel does when memory runs out."""

from __future__ import annotations

import os
import time

import psutil

PATIENCE_S = 60.0


def kill_the_child() -> None:
    """Kill this process's first compiler child."""
    child_of(os.getpid()).kill()


def child_of(pid: int, module: str = "compiler.children.models") -> psutil.Process:
    """Wait for the first child of a process that runs this module."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for child in psutil.Process(pid).children():
            if module in child.cmdline():
                return child
        time.sleep(0.001)
    raise AssertionError(f"no child runs {module}")
