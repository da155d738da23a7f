"""Another program on the machine, which computes a part of the time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

# Seconds of computing, and of sleep after them: a third of the time.
BUSY_S, IDLE_S = 0.05, 0.1


@contextlib.contextmanager
def competitor() -> Iterator[None]:
    """Run a process that uses one core for a third of the time. The kernel chooses the core."""
    with subprocess.Popen([sys.executable, "-P", __file__]) as process:
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"the competing process ended with {process.returncode}")
        finally:
            process.kill()


def compute() -> None:
    while True:
        until_s = time.perf_counter() + BUSY_S
        while time.perf_counter() < until_s:
            pass
        time.sleep(IDLE_S)


if __name__ == "__main__":
    compute()
