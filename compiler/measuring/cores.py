"""Which cores the threads of a kernel run on while it is timed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm

# TVM's word for: each thread of the pool on one core of a list, the caller's first.
ONE_CORE_EACH = -2
THREADS = Path("/proc/self/task")


def bind_thread_pool(threads: int) -> None:
    """Binds the calling thread's pool of `threads` to cores that the process may use. TVM on its own takes
    the machine's first ones, whether they are allowed (`taskset`, containers) or not. Only Linux is asked."""
    if sys.platform != "linux":
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < (os.cpu_count() or 1):
        configure = tvm.get_global_func("runtime.config_threadpool")
        configure(ONE_CORE_EACH, threads, [str(core) for core in cores])


@contextmanager
def off_pool_cores() -> Iterator[None]:
    """Keeps the calling thread off the cores that threads of the pool are bound to.

    TVM leaves the caller, which does its share of a kernel's work, to the operating system. Linux may put it
    beside a bound thread and leave it there for longer than a timing takes: on two cores, everything then
    seems to take twice as long.
    """
    if sys.platform != "linux":
        yield
        return
    allowed = os.sched_getaffinity(0)
    free = allowed - _bound()
    os.sched_setaffinity(0, free or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _bound() -> set[int]:
    """The cores that this process's other threads are bound to, each to one."""
    cores: set[int] = set()
    for thread in map(int, os.listdir(THREADS)):
        if thread == threading.get_native_id():
            continue
        try:
            affinity = os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue  # it has ended since
        if len(affinity) == 1:
            cores |= affinity
    return cores
