"""What a child process takes from itself before it runs code that nobody has looked at."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
# More than any packed module; it stops a candidate's process from filling the disk.
MAX_FILE_BYTES = 8 << 30


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent dies, and ends it if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the agent that started this process is gone")


def limit_files() -> None:
    """No core dumps (they take seconds and gigabytes), no endless files."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)


def limit_memory(address_bytes: int) -> None:
    """Limits this process's address space. May be raised and lowered again."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = address_bytes if hard == resource.RLIM_INFINITY else min(address_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def address_bytes() -> int:
    """How much address space this process uses now; 0 where the system doesn't tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _lower(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(what, (most, most))
