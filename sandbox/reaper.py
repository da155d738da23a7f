"""The reaper: a process between a parent and its child that kills all processes of the child at its end.

The reaper waits for the child to end. Then it kills every process that the child started, even one in a
session of its own. It ends with the child's exit code or signal. `sandbox` shows all processes.

If the kernel allows namespaces, the child lives in a PID namespace. The kernel kills the namespace when its
process 1 ends. The child isn't process 1, because the kernel ignores signals that process 1 sends to itself.
Process 1 only adopts and waits. Without namespaces, orphans become children of the reaper (a subreaper),
which kills them one by one.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NoReturn

import psutil

from system.linux import die_with_parent

# The signal that ends the child and its processes. SIGTERM and SIGINT don't, because a service that is
# stopped with its whole process group waits for its children's replies.
END_SIGNAL = signal.SIGUSR1
IGNORED = (signal.SIGTERM, signal.SIGINT)
# A reaper that hasn't ended its child after this time is killed.
END_TIMEOUT_S = 5.0
_WATCHED = {END_SIGNAL, signal.SIGCHLD}


def fork_child(has_processes: bool) -> None:
    """Fork the child and return in it; the caller becomes the reaper and never returns.

    With `has_processes`, the next process is the first one of a PID namespace. It becomes process 1 and forks
    the child.
    """
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    _fork(_reap)
    if has_processes:
        _fork(_wait_as_process_1)
    os.setsid()  # away from the terminal


def _fork(watch: Callable[[int], NoReturn]) -> None:
    """Fork and return in the new process. The old one closes its standard input and output, and calls
    `watch`."""
    # Block SIGCHLD before the new process can end, so that it isn't missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent_pid=parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        return
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        watch(child)
    finally:
        os._exit(1)


def _reap(child: int) -> NoReturn:
    """Wait for the child, kill the processes that it left, and end with its exit code or signal."""
    code = os.waitstatus_to_exitcode(_wait_for(child))
    # Killed one generation after the other: the orphans of a killed process become children of this one.
    with contextlib.suppress(ChildProcessError):  # raised by waitpid once there are no children
        while True:
            os.waitpid(-1, os.WNOHANG)
            for process in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            os.waitpid(-1, 0)
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # a code above 128 that stands for no signal
            os.kill(os.getpid(), number)
    os._exit(code)


def _wait_as_process_1(child: int) -> NoReturn:
    """Wait for the child, then exit, which ends the namespace.

    Process 1 can't end by a signal of its own, so it exits with 128 + its number, as shells do.
    """
    code = os.waitstatus_to_exitcode(_wait_for(child))
    os._exit(code if code >= 0 else 128 - code)


def _wait_for(child: int) -> int:
    """Return the child's wait status. Kill the child on END_SIGNAL; collect other children that end."""
    while True:
        if signal.sigwait(_WATCHED) == END_SIGNAL:
            os.kill(child, signal.SIGKILL)
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                return ended[1]
