"""Killing children of this process, as the kernel does when memory runs out."""

from __future__ import annotations

import os
import signal
import time

import psutil

PATIENCE_S = 60.0


def kill_the_child() -> None:
    """The first child of the compiler that there is."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for child in psutil.Process().children():
            if "compiler.contained_models" in child.cmdline():
                os.kill(child.pid, signal.SIGKILL)
                return
        time.sleep(0.001)
    raise AssertionError("the compiler has no child")
