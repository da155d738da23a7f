"""The process between the agent and its child, and how the child is contained.

    agent ── keeper ── [process 1 of a PID namespace] ── child

The keeper outlives the child and takes along whatever that started, also what left its session. Where the
kernel allows namespaces, all of it lives in one, which the kernel ends as a whole; process 1 is there to
adopt and to wait, because signals that it sends to itself are ignored. Elsewhere orphans become the keeper's
children, and it kills them one by one. cgroups would do as well, but few workers are given one of their own.
"""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import psutil

from system.linux import die_with_parent
from worker.sandbox import isolation
from worker.sandbox.isolation import Account

# Devices of these groups are what is measured on.
DEVICE_GROUPS = ("video", "render")
# For each core the thread pools of TVM, of BLAS and of those who build; and some for what a candidate starts.
THREADS_PER_CORE = 8
MORE_THREADS = 512
_WATCHED = {signal.SIGTERM, signal.SIGCHLD}

Drop = Callable[[], None]


def contain(parent_pid: int, user: str | None, scratch: Path) -> list[str]:
    """Returns in another process, without network and rights: what can't be contained here, in sentences.

    Where this is root's process, `user` is whom the other one belongs to, if it can read this Python, and
    who is given the folder `scratch`. The calling process never returns. Ends with a message for people when
    there is no such user.
    """
    if sys.platform != "linux":
        return ["measured code isn't contained: only Linux can do that"]
    isolation.limit_files()
    gaps: list[str] = []
    drop = _rights(user, scratch, gaps)
    threads = _threads_in_use(user) + MORE_THREADS + THREADS_PER_CORE * (os.cpu_count() or 1)
    apart = _isolate(gaps)
    die_with_parent(signal.SIGTERM, parent_pid)
    _fork(_keep)
    if apart:
        _fork(_wait_as_process_1)
    os.setsid()
    parent = os.getppid()
    drop()
    die_with_parent(parent_pid=parent)
    isolation.limit_processes(threads)
    return gaps


def account_of(user: str) -> Account:
    """Raises KeyError when there is no such user."""
    found = pwd.getpwnam(user)
    groups = os.getgrouplist(user, found.pw_gid)
    for name in DEVICE_GROUPS:
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrnam(name).gr_gid)
    return Account(found.pw_uid, found.pw_gid, tuple(dict.fromkeys(groups)))


def _rights(user: str | None, scratch: Path, gaps: list[str]) -> Drop:
    """What takes as many rights as possible from a process that still has to read this Python."""
    if user is not None and os.geteuid() == 0:
        account = _account(user)
        become = functools.partial(_become, account, scratch)
        if _can_read(_needed(scratch), functools.partial(isolation.become, account)):
            return become
        gaps.append(
            f"measured code runs as root: the user {user} may not read all of {sys.base_prefix} and "
            f"{sys.prefix}; install Python and tunefarm where every user may read them, such as /opt"
        )
    if _can_read(_needed(scratch), isolation.drop_capabilities):
        return _drop_capabilities
    return isolation.gain_nothing


def _become(account: Account, scratch: Path) -> None:
    os.chown(scratch, account.uid, account.gid)
    isolation.become(account)
    _drop_capabilities()


def _drop_capabilities() -> None:
    isolation.drop_capabilities()
    isolation.gain_nothing()


def _account(user: str) -> Account:
    try:
        return account_of(user)
    except KeyError:
        sys.exit(f"there is no user {user!r} here: set TUNEFARM_WORKER_CHILD_USER to one that exists")


def _needed(scratch: Path) -> list[str]:
    """What the child must be able to read: this Python, the packages, and the way to its own folder."""
    return [os.__file__, __file__, *filter(os.path.isdir, sys.path), str(scratch.parent)]


def _can_read(paths: Sequence[str], drop: Drop) -> bool:
    """Tried by a process that gives its rights up."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            drop()
            os._exit(0 if all(os.access(path, os.R_OK) for path in paths) else 1)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _isolate(gaps: list[str]) -> bool:
    """Whether the processes that are forked from now on live in namespaces; if not, at least a filter."""
    try:
        isolation.unshare()
    except OSError as error:
        refused = f"this system refuses namespaces ({error.strerror}): run the worker as root or allow them"
    else:
        return True
    gaps.append(f"measured code sees the other processes of its user, {refused}")
    try:
        isolation.deny_sockets()
    except OSError as error:
        gaps.append(f"measured code can reach the network, {refused}; no filter is possible either: {error}")
    try:
        isolation.adopt_orphans()
    except OSError as error:
        gaps.append(f"what measured code starts may outlive it, {refused}; nor can it be adopted: {error}")
    return False


def _threads_in_use(user: str | None) -> int:
    """By the user whose processes will be limited: it may have others than ours."""
    uid = pwd.getpwnam(user).pw_uid if user is not None and os.geteuid() == 0 else os.geteuid()
    theirs = psutil.process_iter(["uids", "num_threads"])
    return sum(
        one.info["num_threads"] or 0 for one in theirs if one.info["uids"] and one.info["uids"].real == uid
    )


def _fork(watch: Callable[[int], NoReturn]) -> None:
    """Returns in a new process; this one watches it, and has no part in its conversation with the agent."""
    # Before the new process can end: that signal must not be missed.
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent_pid=parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        return
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        watch(child)
    finally:
        os._exit(1)


def _keep(child: int) -> NoReturn:
    """Ends as the child did, once nothing of what that started is left."""
    code = os.waitstatus_to_exitcode(_outlived(child))
    _kill_children()
    if code < 0 or code > 128:
        _end_by(-code if code < 0 else code - 128)
    os._exit(code)


def _wait_as_process_1(child: int) -> NoReturn:
    """What is left ends with this process. It can't end by a signal: a shell's codes stand for them."""
    code = os.waitstatus_to_exitcode(_outlived(child))
    os._exit(code if code >= 0 else 128 - code)


def _outlived(child: int) -> int:
    """The child's wait status. SIGTERM ends the child; other children are only seen off."""
    while True:
        if signal.sigwait(_WATCHED) == signal.SIGTERM:
            os.kill(child, signal.SIGKILL)
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == child:
                return ended[1]


def _kill_children() -> None:
    """Until there are none: those of a child that is killed become ours."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, os.WNOHANG)  # raises where there is nothing to do
            for process in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            os.waitpid(-1, 0)


def _end_by(number: int) -> None:
    """Returns when no signal has this number."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), number)
