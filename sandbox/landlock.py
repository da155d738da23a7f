"""Landlock: let the kernel refuse all files except some.

Landlock needs no rights and no namespaces, so it works in containers. It doesn't control sockets, times and
modes of files, or whether a refused file's existence is visible.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from sandbox.files import VisibleFiles
from system import linux

# Constants of <linux/landlock.h>.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
# All rights to files by Landlock's version. The last entry applies to later versions, too.
_ALL_RIGHTS = ((1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
_NET_VERSION, _SCOPE_VERSION = 4, 6
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def restrict(files: VisibleFiles) -> None:
    """Let the kernel refuse this process all files except these and those in /proc and /sys.

    Other processes can't be traced and, with a new enough kernel, can't be signalled. Call
    `forbid_new_privileges` first. Raises OSError if the kernel has no Landlock.
    """
    version = linux.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION)
    rights = _ALL_RIGHTS[min(version, len(_ALL_RIGHTS)) - 1]
    fields = [rights]
    if version >= _NET_VERSION:
        fields.append(_BIND_AND_CONNECT_TCP)
    if version >= _SCOPE_VERSION:
        fields.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = linux.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        rules = [
            *((path, _READ) for path in (*files.readable, Path("/proc"), Path("/sys"))),
            *((path, _READ_DIR) for path in files.listed),
            *((path, _READ | _WRITE_FILE | _IOCTL_DEV) for path in files.devices),
            *((path, rights) for path in files.writable),
        ]
        for path, allowed in rules:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, allowed & rights)
        linux.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Allow these rights on a file, or on a folder and its contents."""
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, opened)
        linux.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(opened)
