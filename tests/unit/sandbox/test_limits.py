"""What a child's memory limit covers, and what it doesn't."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from sandbox.limits import limit_memory

def takes(size):
    try:
        return len(bytearray(size)) == size
    except MemoryError:
        return False

limit_memory(64 << 20)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0 if takes(48 << 20) else 1)
    children.append(child)
print(takes(80 << 20), [os.waitpid(child, 0)[1] for child in children])
"""


def test_the_data_limit_applies_to_each_process() -> None:
    """Processes that a child starts have as much memory each: `sandbox.family_memory` limits all together."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "False [0, 0, 0]"
