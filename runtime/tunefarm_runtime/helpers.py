"""The threads of TVM's pool that help a caller's thread: find them, and wake them on separate processors.

The threads of a pool sleep between calls. The system may wake them on the caller's processor, and leave them
there for milliseconds: a short call then takes as many times longer. So a call after a pause wakes them where
they should compute. They aren't bound there, because a thread bound to a busy processor holds up all others.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from typing import Any

# A task for each thread of a pool, with its number, its group and the launcher's argument; 0 is success.
_Task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@cache
def _system() -> Any:
    return ctypes.CDLL(None)


@cache
def _launch() -> Any:
    """Return TVM's function that runs a task on each thread of the caller's pool; None if the process has
    loaded TVM's runtime under another name."""
    try:
        return ctypes.CDLL("libtvm_runtime.so", mode=os.RTLD_NOLOAD).TVMBackendParallelLaunch
    except (OSError, AttributeError):
        return None


def find() -> tuple[int, ...]:
    """Return the system's ids of the threads that help the calling thread, in any order."""
    found: set[int] = set()

    def note(number: int, group: int | None, given: int | None) -> int:
        found.add(threading.get_native_id())
        return 0

    if (launch := _launch()) is not None:
        launch(_Task(note), None, 0)
    return tuple(found - {threading.get_native_id()})


def wake(helpers: Collection[int]) -> None:
    """Wake threads that `find` returned, each on a processor of its own, if the caller may use that many."""
    allowed = os.sched_getaffinity(0)
    others = allowed - {_system().sched_getcpu()}
    if len(others) < len(helpers):
        return
    with suppress(OSError):  # a sandbox may forbid it
        for helper, processor in zip(helpers, others, strict=False):
            os.sched_setaffinity(helper, {processor})
    # A task without effect: sched_yield ignores its arguments and returns 0.
    _launch()(ctypes.cast(_system().sched_yield, _Task), None, 0)
    with suppress(OSError):
        for helper in helpers:
            os.sched_setaffinity(helper, allowed)
