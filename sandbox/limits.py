"""Limits of a process's resources, with a function for each."""

from __future__ import annotations

import resource
import time
from pathlib import Path

# Larger than any packed module. It stops a candidate from filling the disk.
MAX_FILE_BYTES = 8 << 30
MAX_OPEN_FILES = 4096
_STATM = Path("/proc/self/statm")


def limit_files() -> None:
    """Forbid core dumps, which take seconds and gigabytes. Limit the size of files and the number of open
    files."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)


def limit_processes(most: int) -> None:
    """Limit the threads and processes of this process's user. The kernel exempts root from this limit."""
    _lower(resource.RLIMIT_NPROC, most)


def limit_memory(more_bytes: int, baseline_bytes: int | None = None) -> None:
    """Limit this process's data to `more_bytes` on top of a baseline, by default its current data.

    Data is memory that the process may write and shares with no other: heap, stacks of threads, anonymous
    mappings. Libraries and reserved addresses don't count: CUDA and PyTorch reserve gigabytes that they never
    use. The limit may be raised and lowered again.
    """
    _limit(resource.RLIMIT_DATA, (data_bytes() if baseline_bytes is None else baseline_bytes) + more_bytes)


def limit_cpu(more_s: float) -> None:
    """Let SIGXCPU end this process after `more_s` more seconds of CPU time, summed over all cores."""
    _limit(resource.RLIMIT_CPU, int(time.process_time() + more_s) + 1)


def data_bytes() -> int:
    """Return this process's current data in bytes; 0 if the system doesn't report it."""
    try:
        pages = int(_STATM.read_text().split()[5])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _lower(kind: int, most: int) -> None:
    """Set the hard limit, which can't be raised again."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(kind, (most, most))
