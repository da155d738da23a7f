"""Functions that drop a process's rights before it runs untrusted code."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from system import linux

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CAPABILITIES_VERSION = 0x20080522
# The default user of children whose parent is root.
NOBODY = "nobody"


@dataclass(frozen=True)
class Account:
    """A user of this machine, by numbers."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]


def account_of(user: str, more_groups: Iterable[str] = ()) -> Account:
    """Return a user's account, with the existing groups of `more_groups`. Raises KeyError for an unknown
    user."""
    found = pwd.getpwnam(user)
    groups = os.getgrouplist(user, found.pw_gid)
    for name in more_groups:
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrnam(name).gr_gid)
    return Account(user, found.pw_uid, found.pw_gid, tuple(dict.fromkeys(groups)))


def hide_memory() -> None:
    """Hide this process's memory and environment, which may hold secrets, from its user's other processes."""
    if sys.platform == "linux":
        linux.prctl(PR_SET_DUMPABLE, 0)


def become_subreaper() -> None:
    """Make this process the parent of descendants whose own parents end."""
    linux.prctl(PR_SET_CHILD_SUBREAPER, 1)


def unshare_namespaces(processes: bool = True, user: bool = False) -> None:
    """Separate this process from the network and from other processes' shared memory.

    With `processes`, its children are in a PID namespace: they see only each other, and end with the first of
    them. Without root's rights, or with `user`, this uses a user namespace. From there, other processes can't
    be traced, even those of the same user. Raises OSError if the kernel refuses.
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


def switch_user(account: Account) -> None:
    """Continue as another user. Raises OSError without root's rights."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)


def drop_capabilities() -> None:
    """Drop all capabilities: even as root, this process keeps only its user's rights to files."""
    linux.call("capset", struct.pack("=II", CAPABILITIES_VERSION, 0), bytes(6 * 4))


def forbid_new_privileges() -> None:
    """Let programs that this process starts gain no rights, even if they are set-user-ID."""
    linux.prctl(PR_SET_NO_NEW_PRIVS, 1)
