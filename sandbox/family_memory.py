"""The memory of all processes of a child together, which the kernel limits only in a control group.

A parent looks at it twice a second, and ends a child whose processes have too much. It does so while
candidates are timed, so it reads a few small files for each process of the child, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import psutil

INTERVAL_S = 0.5
# Libraries that were loaded before a child's own limit began, and a linker beside the compiler.
SLACK_BYTES = 2 << 30
# Written by the process, shared with others, or swapped out; files in memory don't count.
_WHOLE = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)
# The same, where a page that several processes share counts for each by its part.
_SHARED_OUT = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB", re.MULTILINE)


def most_bytes(limit_bytes: int) -> int:
    """Return the memory limit in bytes for all processes of a child, if each may have `limit_bytes` more."""
    return 2 * limit_bytes + SLACK_BYTES


def bytes_above(reaper_pid: int, most: int) -> int:
    """Return the memory of all that a reaper has below it if that is more than `most`, otherwise 0.

    Also 0 where the reaper has ended, or the system doesn't tell. To divide shared pages, the kernel walks
    all pages of a process, so that is done only if they would be too many when counted for each process.
    """
    family = _family(reaper_pid)
    if sum(_kilobytes(pid, "status", _WHOLE) for pid in family) * 1024 <= most:
        return 0
    # A process can keep its pages from being looked at.
    divided = (
        _kilobytes(pid, "smaps_rollup", _SHARED_OUT) or _kilobytes(pid, "status", _WHOLE) for pid in family
    )
    taken = sum(divided) * 1024
    return taken if taken > most else 0


def _family(reaper_pid: int) -> list[int]:
    """Return the ids of all processes below a reaper."""
    if not Path(f"/proc/{reaper_pid}/task/{reaper_pid}/children").exists():  # the kernel was built without
        try:
            return [process.pid for process in psutil.Process(reaper_pid).children(recursive=True)]
        except psutil.Error:
            return []
    family = [reaper_pid]
    for pid in family:  # it grows meanwhile
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                family += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return family[1:]


def _kilobytes(pid: int, file: str, fields: re.Pattern[bytes]) -> int:
    try:
        text = Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return 0
    return sum(map(int, fields.findall(text)))
