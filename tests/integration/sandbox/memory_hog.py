"""Take more memory than the limit: by several processes, or as memory that RLIMIT_DATA doesn't count.

It replaces a compromised module of `compiler.children`, or a compromised runner.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time

from sandbox.family_memory import INTERVAL_S
from sandbox.limits import limit_memory
from tests.integration.worker.fault_runner import FaultRunner
from worker.runner.interface import BuildRequest

PART_BYTES = 100 << 20
PARTS = 4


def take(how: str) -> None:
    """Take the memory, and keep it until this process ends: after two seconds if one process may have that
    much.
    """
    if how == "shared":
        mapped = mmap.mmap(-1, PARTS * PART_BYTES)
        for start in range(0, len(mapped), mmap.PAGESIZE):
            mapped[start] = 1
    elif how == "shared by many":
        filled = b"x" * PART_BYTES
        for _ in range(PARTS):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(len(filled) % 2)
        time.sleep(4 * INTERVAL_S)
        return
    else:
        for _ in range(PARTS):
            if os.fork() == 0:
                filled = b"x" * PART_BYTES
                time.sleep(600)
                os._exit(len(filled) % 2)
    time.sleep(600)


class HogRunner(FaultRunner):
    def do_hog(self, request: BuildRequest | None) -> None:
        assert request is not None
        take(request.module_json)


if __name__ == "__main__":
    limit_memory(PART_BYTES + (28 << 20))
    take(json.load(sys.stdin)["how"])
