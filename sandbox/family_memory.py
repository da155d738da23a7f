"""Limit the total memory of all processes of a child. The kernel could do that only in a control group.

A parent checks the total twice a second, and kills a child whose processes exceed the limit. Candidates may
be timed meanwhile, so a check only reads a few small files for each process of the child.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import psutil

INTERVAL_S = 0.5
# The memory for libraries that a child loads before its own limit begins, and for a linker.
SLACK_BYTES = 2 << 30
# Anonymous, shared and swapped-out pages. Files in memory don't count.
_WHOLE = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)
# The same, with each shared page divided among the processes that share it.
_SHARED_OUT = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB", re.MULTILINE)


def most_bytes(limit_bytes: int) -> int:
    """Return the memory limit in bytes for all processes of a child, if each may have `limit_bytes` more."""
    return 2 * limit_bytes + SLACK_BYTES


def bytes_above(reaper_pid: int, most: int) -> int:
    """Return the memory of all processes below a reaper if it exceeds `most`, otherwise 0.

    Return 0 also if the reaper has ended, or if the system doesn't report memory. To divide shared pages, the
    kernel walks all pages of a process. So they are divided only if the undivided sum exceeds `most`.
    """
    family = _family(reaper_pid)
    if sum(_kilobytes(pid, "status", _WHOLE) for pid in family) * 1024 <= most:
        return 0
    # A process can make its smaps_rollup unreadable.
    divided = (
        _kilobytes(pid, "smaps_rollup", _SHARED_OUT) or _kilobytes(pid, "status", _WHOLE) for pid in family
    )
    taken = sum(divided) * 1024
    return taken if taken > most else 0


def _family(reaper_pid: int) -> list[int]:
    """Return the ids of all processes below a reaper."""
    if not Path(
        f"/proc/{reaper_pid}/task/{reaper_pid}/children"
    ).exists():  # the kernel was built without this file
        try:
            return [process.pid for process in psutil.Process(reaper_pid).children(recursive=True)]
        except psutil.Error:
            return []
    family = [reaper_pid]
    for pid in family:  # the loop extends the list
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
