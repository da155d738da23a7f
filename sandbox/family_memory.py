"""The memory of all processes of a child together, which the kernel limits only in a control group.

A parent looks at it twice a second, and ends a child whose processes have too much.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil

INTERVAL_S = 0.5
# Libraries that were loaded before a child's own limit began, and a linker beside the compiler.
SLACK_BYTES = 2 << 30
# Written by the process alone, shared with others, or swapped out; files in memory don't count.
_PRIVATE = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)


def most_bytes(limit_bytes: int) -> int:
    """Return what the processes of a child may have together, where each may have `limit_bytes` more."""
    return 2 * limit_bytes + SLACK_BYTES


def family_bytes(reaper_pid: int) -> int:
    """Return the memory of all that a reaper has below it; 0 where it has ended, or the system doesn't tell.

    Memory that processes share counts for each of them.
    """
    try:
        family = psutil.Process(reaper_pid).children(recursive=True)
    except psutil.Error:
        return 0
    return sum(_private_bytes(process.pid) for process in family)


def _private_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    return 1024 * sum(map(int, _PRIVATE.findall(status)))
