"""The scheduler as a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys


def start(**environment: str) -> subprocess.Popen[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
    return subprocess.Popen(
        [sys.executable, "-m", "scheduler"],
        env=plain | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
