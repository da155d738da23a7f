"""Locks on files and folders. The kernel releases them when the process ends."""

from __future__ import annotations

import fcntl
import os


def try_lock(descriptor: int) -> int | None:
    """Lock an open file and return its descriptor. If another process holds the lock, close it and return
    None."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
