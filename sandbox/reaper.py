"""The reaper: the process between the agent and its child, which leaves no process of a candidate behind.

The reaper waits for the child to end, kills every process that the child started, even one in a session of
its own, and ends with the child's exit code or signal. `sandbox` shows all processes.

Where the kernel allows namespaces, the child lives in a PID namespace, which the kernel kills as a whole when
its process 1 ends. The child isn't process 1 itself, because the kernel ignores signals that process 1 sends
to itself; process 1 only adopts and waits. Elsewhere orphans become children of the reaper (a subreaper),
which kills them one by one. cgroups would do as well, but few workers are given one of their own.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from sandbox import isolation
from sandbox.isolation import Account
from system.linux import die_with_parent

# Groups that own the device files of GPUs and other accelerators.
DEVICE_GROUPS = ("video", "render")
# Each core has threads in the pools of TVM, of BLAS and of the builders; a candidate may start others.
THREADS_PER_CORE = 8
MORE_THREADS = 512
_WATCHED = {signal.SIGTERM, signal.SIGCHLD}

DropPrivileges = Callable[[], None]


def enter_sandbox(
    parent_pid: int,
    user: str | None,
    scratch: Path,
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
) -> list[str]:
    """Fork the child and return in it, without network and privileges; the caller becomes the reaper.

    The child sees no files but those that this Python needs, `scratch` and what is `readable` or `writable`.

    Return the gaps of the sandbox: a sentence for each restriction that isn't possible on this machine. Where
    the caller is root, the child runs as `user`, if that user can read this Python, and `user` then owns the
    folder `scratch`. Exit with a message when there is no such user.
    """
    if sys.platform != "linux":
        return ["measured code isn't contained: only Linux can do that"]
    isolation.limit_files()
    gaps: list[str] = []
    drop_privileges = _privilege_drop(user, scratch, gaps)
    # The limit counts all processes of the child's user, among them those that aren't ours.
    uid = pwd.getpwnam(user).pw_uid if user is not None and os.geteuid() == 0 else os.geteuid()
    in_use = sum(
        process.info["num_threads"] or 0
        for process in psutil.process_iter(["uids", "num_threads"])
        if process.info["uids"] and process.info["uids"].real == uid
    )
    most_threads = in_use + MORE_THREADS + THREADS_PER_CORE * (os.cpu_count() or 1)
    has_namespaces = _isolate(gaps)
    die_with_parent(signal.SIGTERM, parent_pid)
    _fork(_reap)
    if has_namespaces:
        _fork(_wait_as_process_1)
    os.setsid()
    parent = os.getppid()
    gaps += isolation.restrict_files(
        "measured code", readable, [scratch, *writable], drop_privileges, has_namespaces, fresh_proc=True
    )
    die_with_parent(parent_pid=parent)  # again, because the kernel forgets it when the user changes
    isolation.limit_processes(most_threads)
    return gaps


def account_of(user: str) -> Account:
    """Return a user's numbers, the groups that own devices added. Raises KeyError for an unknown user."""
    found = pwd.getpwnam(user)
    groups = os.getgrouplist(user, found.pw_gid)
    for name in DEVICE_GROUPS:
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrnam(name).gr_gid)
    return Account(found.pw_uid, found.pw_gid, tuple(dict.fromkeys(groups)))


def _privilege_drop(user: str | None, scratch: Path, gaps: list[str]) -> DropPrivileges:
    """Return a function that drops as many privileges as a process can that still reads this Python."""

    def drop_capabilities() -> None:
        isolation.drop_capabilities()
        isolation.forbid_new_privileges()

    if user is not None and os.geteuid() == 0:
        try:
            account = account_of(user)
        except KeyError:
            sys.exit(f"there is no user {user!r} here: set TUNEFARM_WORKER_CHILD_USER to one that exists")

        def switch_user() -> None:
            os.chown(scratch, account.uid, account.gid)
            isolation.switch_user(account)
            drop_capabilities()

        if _can_read_python(scratch, lambda: isolation.switch_user(account)):
            return switch_user
        gaps.append(
            f"measured code runs as root: the user {user} may not read all of {sys.base_prefix} and "
            f"{sys.prefix}; install Python and tunefarm where every user may read them, such as /opt"
        )
    if _can_read_python(scratch, isolation.drop_capabilities):
        return drop_capabilities
    return isolation.forbid_new_privileges


def _can_read_python(scratch: Path, drop: DropPrivileges) -> bool:
    """Try in a process of its own whether this Python, its packages and the child's folder stay readable."""
    needed = [os.__file__, __file__, *filter(os.path.isdir, sys.path), str(scratch.parent)]
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            drop()
            os._exit(0 if all(os.access(path, os.R_OK) for path in needed) else 1)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _isolate(gaps: list[str]) -> bool:
    """Put the processes that are forked from now on into namespaces, where the kernel allows it.

    Return whether they are in namespaces.
    """
    try:
        isolation.unshare_namespaces()
    except OSError as error:
        refused = f"this system refuses namespaces ({error.strerror}): run the worker as root or allow them"
    else:
        return True
    gaps.append(f"measured code sees the other processes of its user, {refused}")
    try:
        isolation.become_subreaper()
    except OSError as error:
        gaps.append(f"what measured code starts may outlive it, {refused}; nor can it be adopted: {error}")
    return False


def _fork(watch: Callable[[int], NoReturn]) -> None:
    """Fork and return in the new process; the old one drops the pipes to the agent and calls `watch`."""
    # Blocked before the new process can end: its SIGCHLD must not be missed.
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
    """Wait for the child, then end, and with it the namespace.

    Process 1 can't end by a signal of its own, so it exits with 128 + its number, as shells do.
    """
    code = os.waitstatus_to_exitcode(_wait_for(child))
    os._exit(code if code >= 0 else 128 - code)


def _wait_for(child: int) -> int:
    """Return the child's wait status. Kill the child on SIGTERM; collect other children that end."""
    while True:
        if signal.sigwait(_WATCHED) == signal.SIGTERM:
            os.kill(child, signal.SIGKILL)
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                return ended[1]
