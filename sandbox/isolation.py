"""Restrictions that a process puts on itself before it runs untrusted code, one function each."""

from __future__ import annotations

import errno
import os
import resource
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import AF_UNIX

from sandbox import visible_files
from system import linux

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CAPABILITIES_VERSION = 0x20080522
# Larger than any packed module; it stops a candidate from filling the disk.
MAX_FILE_BYTES = 8 << 30
MAX_OPEN_FILES = 4096


@dataclass(frozen=True)
class Account:
    """A user of this machine, by numbers."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def hide_memory() -> None:
    """Hide this process's memory and environment, which may hold secrets, from its user's other processes."""
    if sys.platform == "linux":
        linux.prctl(PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    linux.prctl(PR_SET_CHILD_SUBREAPER, 1)


def unshare_namespaces(processes: bool = True, user: bool = False) -> None:
    """Cut this process off from the network and from the shared memory of others.

    With `processes`, what it starts is in a PID namespace: these see only each other and end with the first
    of them. Without root's rights this takes a user namespace, and so it does with `user`: from there, other
    processes can't be traced, be they of the same user. Raises OSError where the kernel refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    kinds = CLONE_NEWNET | CLONE_NEWIPC
    kinds |= CLONE_NEWPID if processes else 0
    kinds |= CLONE_NEWUSER if uid or user else 0
    linux.call("unshare", kinds)
    if kinds & CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def deny_sockets() -> None:
    """Have the kernel refuse this process, and what it starts, to speak with others through sockets.

    Sockets of the network can't be made; those within this machine can, but not be connected to anything: so
    services such as D-Bus or Docker are out of reach. Raises OSError where the kernel or libseccomp has no
    such filter.
    """
    try:
        import pyseccomp  # looks for libseccomp when it is imported, and few systems need it

        refuse = pyseccomp.ERRNO(errno.EPERM)
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        rules.add_rule(refuse, "socket", pyseccomp.Arg(0, pyseccomp.NE, AF_UNIX))
        rules.add_rule(refuse, "io_uring_setup")  # opens sockets too
        for call in ("connect", "sendmsg", "sendmmsg"):
            rules.add_rule(refuse, call)
        rules.add_rule(refuse, "sendto", pyseccomp.Arg(4, pyseccomp.NE, 0))  # to an address
        rules.load()
    except (ImportError, RuntimeError) as error:
        raise OSError(errno.ENOSYS, str(error)) from error


def restrict_files(
    who: str,
    readable: Sequence[Path],
    writable: Sequence[Path],
    drop_rights: Callable[[], None],
    may_mount: bool,
    fresh_proc: bool = False,
) -> list[str]:
    """Restrict this process to these files, and to what this Python needs, then call `drop_rights`.

    Mounts do it where they are possible and `may_mount` is set, which takes namespaces that keep this process
    from the roots of others (/proc/PID/root); else Landlock, and a filter that keeps it from the sockets that
    Landlock leaves in reach. Return the gaps, sentences about `who`.
    """
    readable = [*visible_files.needed_files(os.environ), *readable]
    try:
        if not may_mount:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        visible_files.can_mount(readable, writable, fresh_proc)
        visible_files.mount_only(readable, writable, fresh_proc)
    except OSError as error:
        refused = f"this system refuses mounts ({error.strerror})"
    else:
        drop_rights()
        return []
    drop_rights()
    gaps = []
    try:
        visible_files.landlock(readable, writable)
    except OSError as error:
        gaps.append(
            f"{who} sees the files of its user, {refused} and Landlock ({error.strerror}): "
            "allow namespaces, or boot a kernel of version 5.13 or later with Landlock"
        )
    try:
        deny_sockets()
    except OSError as error:
        gaps.append(f"{who} can reach sockets, {refused} and no filter is possible: {error}")
    return gaps


def switch_user(account: Account) -> None:
    """Continue as another user. Raises OSError without root's rights."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def drop_capabilities() -> None:
    """Leave this process, even root's, only the rights that its user has to files."""
    linux.call("capset", struct.pack("=II", CAPABILITIES_VERSION, 0), bytes(6 * 4))


def forbid_new_privileges() -> None:
    """Keep programs that are started from now on from gaining rights, as set-user-ID programs do."""
    linux.prctl(PR_SET_NO_NEW_PRIVS, 1)


def limit_files() -> None:
    """Forbid core dumps (they take seconds and gigabytes); limit the size of files and how many are open."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, MAX_OPEN_FILES)


def limit_processes(most: int) -> None:
    """Limit the threads and processes of this process's user. The kernel exempts root from this limit."""
    _lower(resource.RLIMIT_NPROC, most)


def limit_memory(address_bytes: int) -> None:
    """Limit this process's address space. The limit may be raised and lowered again."""
    _limit(resource.RLIMIT_AS, address_bytes)


def limit_cpu(more_s: float) -> None:
    """Have SIGXCPU end this process once it has used `more_s` more seconds, summed over all cores."""
    _limit(resource.RLIMIT_CPU, int(time.process_time() + more_s) + 1)


def address_bytes() -> int:
    """Return how much address space this process uses now; 0 where the system doesn't tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _lower(kind: int, most: int) -> None:
    """Limit for good: the hard limit can't be raised again."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(kind, (most, most))
