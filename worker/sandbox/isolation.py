"""What a process takes from itself before it runs code that nobody has looked at, one thing each."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX

from system import linux

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CAPABILITIES_VERSION = 0x20080522
# More than any packed module; it stops a candidate's process from filling the disk.
MAX_FILE_BYTES = 8 << 30
MAX_OPEN_FILES = 4096


@dataclass(frozen=True)
class Account:
    """A user of this machine, by numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def hide_memory() -> None:
    """Keeps this process's environment, where secrets may be, from other processes of its user."""
    if sys.platform == "linux":
        linux.prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Processes started by descendants become this one's children when their own parents end."""
    linux.prctl(PR_SET_CHILD_SUBREAPER, 1)


def unshare() -> None:
    """No network for this process; processes that it starts see only each other, and die with the first.

    Without root's rights that takes a user namespace. Raises OSError where the kernel refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    linux.call("unshare", CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | (CLONE_NEWUSER if uid else 0))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def deny_sockets() -> None:
    """A filter in the kernel that refuses sockets other than those within this machine; it is inherited.

    Raises OSError where the kernel or libseccomp lacks it.
    """
    try:
        import pyseccomp  # it looks for libseccomp at once, and few systems need it

        refuse = pyseccomp.ERRNO(errno.EPERM)
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        rules.add_rule(refuse, "socket", pyseccomp.Arg(0, pyseccomp.NE, AF_UNIX))
        rules.add_rule(refuse, "io_uring_setup")  # opens sockets too
        rules.load()
    except (ImportError, RuntimeError) as error:
        raise OSError(errno.ENOSYS, str(error)) from error


def become(account: Account) -> None:
    """Raises OSError without root's rights."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def drop_capabilities() -> None:
    """Leaves this process, even root's, with the rights of a file's owner only."""
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    linux.call("capset", header, (ctypes.c_uint32 * 6)())


def gain_nothing() -> None:
    """Programs that are started from now on get no more rights than this process has."""
    linux.prctl(PR_SET_NO_NEW_PRIVS, 1)


def limit_files() -> None:
    """No core dumps (they take seconds and gigabytes), no endless files, not too many open ones."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)


def limit_processes(most: int) -> None:
    """Limits the threads and processes of this process's user. Root's have no limit."""
    _lower(resource.RLIMIT_NPROC, most)


def limit_memory(address_bytes: int) -> None:
    """Limits this process's address space. May be raised and lowered again."""
    _limit(resource.RLIMIT_AS, address_bytes)


def limit_cpu(more_s: float) -> None:
    """SIGXCPU ends this process when it has used so many more seconds, those of all cores added up."""
    _limit(resource.RLIMIT_CPU, int(time.process_time() + more_s) + 1)


def address_bytes() -> int:
    """How much address space this process uses now; 0 where the system doesn't tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _lower(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(what, (most, most))
