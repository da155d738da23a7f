"""Choose the cores that the threads of a kernel run on while it is timed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm

# TVM's affinity mode that binds each thread of the pool to one core of a list, starting with the caller's.
ONE_CORE_EACH = -2
THREADS = Path("/proc/self/task")


def bind_thread_pool(threads: int) -> None:
    """Bind the calling thread's pool of `threads` to cores that this process may use.

    TVM's default is the machine's first cores, even if `taskset` or a container allows only others. Does
    nothing on systems other than Linux.
    """
    if sys.platform != "linux":
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < (os.cpu_count() or 1):
        configure = tvm.get_global_func("runtime.config_threadpool")
        configure(ONE_CORE_EACH, threads, [str(core) for core in cores])


@contextmanager
def off_pool_cores() -> Iterator[None]:
    """Keep the calling thread off the cores of the pool's threads.

    The calling thread does its share of a kernel's work, but TVM doesn't bind it. Linux may put it on a bound
    thread's core and leave it there for the whole timing. On two cores, every kernel then seems to take twice
    as long.
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
    """Return the cores of this process's other threads that are bound to a single core."""
    cores: set[int] = set()
    for thread in map(int, os.listdir(THREADS)):
        if thread == threading.get_native_id():
            continue
        try:
            affinity = os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue  # the thread ended meanwhile
        if len(affinity) == 1:
            cores |= affinity
    return cores
