"""Choose the cores that the threads of a kernel run on while it is timed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm

# TVM's number for the mode that binds each thread of the pool to one core of a list, the caller's first.
ONE_CORE_EACH = -2
THREADS = Path("/proc/self/task")


def bind_thread_pool(threads: int) -> None:
    """Bind the calling thread's pool of `threads` to cores that this process may use.

    By itself TVM takes the machine's first cores, also where `taskset` or a container allows others only.
    Does nothing on other systems than Linux.
    """
    if sys.platform != "linux":
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < (os.cpu_count() or 1):
        configure = tvm.get_global_func("runtime.config_threadpool")
        configure(ONE_CORE_EACH, threads, [str(core) for core in cores])


@contextmanager
def off_pool_cores() -> Iterator[None]:
    """Keep the calling thread off the cores that threads of the pool are bound to.

    The calling thread does its share of a kernel's work, and TVM doesn't bind it. Linux may put it on the
    core of a bound thread and leave it there for the whole timing. On two cores, everything then seems to
    take twice as long.
    """
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    free = allowed - _cores_of_bound_threads()
    os.sched_setaffinity(0, free or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _cores_of_bound_threads() -> set[int]:
    """Return the cores that other threads of this process are bound to, each thread to a single core."""
    cores: set[int] = set()
    for thread in map(int, os.listdir(THREADS)):
        if thread == threading.get_native_id():
            continue
        try:
            affinity = os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue  # the thread has ended since
        if len(affinity) == 1:
            cores |= affinity
    return cores
