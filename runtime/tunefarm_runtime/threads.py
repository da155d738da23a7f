"""The number of threads that a model computes with.

TVM makes a pool of threads for each thread that runs models, when it first runs one. A pool can't grow, and
its threads are gone in a process that was forked.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tunefarm_runtime import helpers
from tunefarm_runtime.errors import RunError
from tunefarm_runtime.ffi import tvm_ffi

THREADS_VARIABLE = "TVM_NUM_THREADS"
BINDING_VARIABLE = "TVM_BIND_THREADS"
SPINNING_VARIABLE = "TVM_THREAD_POOL_SPIN_COUNT"
# A larger number is surely a mistake, and TVM ends the process where the system refuses a thread.
MAX_THREADS = 1024
# How often an idle thread yields its processor before it sleeps; half a microsecond each on an idle machine.
# TVM's 300,000 take 0.15 s after each call, and seconds on a busy machine. The system takes this for work and
# runs two threads of another process on one processor.
_SPINS = 4000
# The threads of a pool sleep after about this long. Waking them takes a tenth of a millisecond, which a short
# call isn't worth.
_PAUSE_S, _SHORT_S = 0.002, 0.0003
# TVM's number for processors of the highest frequency, which are all of them on most machines.
_FASTEST = 1


class _Process:
    """The most threads of any model, the variable before that, and how often the process forked."""

    most = 0
    forks = 0
    given: str | None = None


class _Pool(threading.local):
    """The pool of one thread: for which process and how many threads it was set up, if that worked, and the
    threads that help. The last call ended at `ended_s` and took `took_s`."""

    state: tuple[int, int, int] | None = None
    fits = True
    helpers: tuple[int, ...] = ()
    ended_s = -math.inf
    took_s = math.inf


_pool = _Pool()


def _forked() -> None:
    _Process.forks += 1


os.register_at_fork(after_in_child=_forked)


def choose_threads(wanted: int | None, tuned: int) -> int:
    """Return the number of threads for a model that was tuned for `tuned` threads.

    It is `wanted`, or else TVM_NUM_THREADS, or else `tuned`, if the process may use that many processors.
    Raises RunError for a number that can't be used.
    """
    variable = os.environ.get(THREADS_VARIABLE)
    if _Process.most and variable == str(_Process.most):
        variable = _Process.given  # its value before this module set it
    number: object
    if wanted is not None:
        number, name = wanted, "threads"
    elif variable:
        number, name = int(variable) if variable.isdecimal() else variable, THREADS_VARIABLE
    else:
        number, name = min(tuned, len(os.sched_getaffinity(0))), "the manifest's threads"
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_THREADS:
        raise RunError(f"{name} must be a number between 1 and {MAX_THREADS}, not {number!r}")
    if number > _Process.most:
        if not _Process.most:
            _Process.given = variable
            # Bound threads of several models would share the first processors, and so would the caller's.
            os.environ.setdefault(BINDING_VARIABLE, "0")
            os.environ.setdefault(SPINNING_VARIABLE, str(_SPINS))
        _Process.most = number
        os.environ[THREADS_VARIABLE] = str(number)
    return number


class Runner:
    """Calls a function with a number of threads: in the caller's thread if its pool allows that, or else in a
    thread of its own."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._configure = tvm_ffi.get_global_func("runtime.config_threadpool")
        self._count = tvm_ffi.get_global_func("runtime.NumThreads")
        self._executor: ThreadPoolExecutor | None = None
        self._executor_forks = 0

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if (_pool.fits and _pool.state == (self.threads, _Process.most, _Process.forks)) or self._prepared():
            return _run(function, arguments)
        if self._executor is None or self._executor_forks != _Process.forks:
            self._executor = ThreadPoolExecutor(1, "tunefarm")
            self._executor_forks = _Process.forks
        return self._executor.submit(self._in_own_thread, function, arguments).result()

    def _in_own_thread(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self._prepared()
        return _run(function, arguments)

    def _prepared(self) -> bool:
        """Set the number of threads of this thread's pool. Return whether that is possible."""
        state = (self.threads, _Process.most, _Process.forks)
        if _pool.state != state:
            if _pool.state is not None and _pool.state[1] > 1 and _pool.state[2] != _Process.forks:
                return False
            if _Process.most > 1:
                self._configure(_FASTEST, self.threads)
                _pool.fits = self._count() >= self.threads
                # Threads that a user binds stay where they are.
                _pool.helpers = helpers.find() if os.environ[BINDING_VARIABLE] == "0" else ()
            _pool.state = state
        return _pool.fits


def _run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function. After a pause, wake the threads of this thread's pool first."""
    if not _pool.helpers:
        return function(*arguments)
    begun_s = time.monotonic()
    if begun_s - _pool.ended_s > _PAUSE_S and _pool.took_s > _SHORT_S:
        helpers.wake(_pool.helpers)
    try:
        return function(*arguments)
    finally:
        _pool.ended_s = time.monotonic()
        _pool.took_s = _pool.ended_s - begun_s
