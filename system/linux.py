"""Calls of the C library and the Linux kernel that Python's standard library lacks."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Linux, arch/x86/include/uapi/asm/prctl.h, and the number of the state of AMX's tiles.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18

_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    _libc.syscall.restype = ctypes.c_long
    _libc.mount.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_ulong,
        ctypes.c_char_p,
    ]


def die_with_parent(with_signal: signal.Signals = signal.SIGKILL, parent_pid: int | None = None) -> None:
    """Let the kernel send this process a signal when its parent dies.

    If the parent is no longer `parent_pid`, it died before the request, so this process exits. A parent
    outside of this PID namespace has the id 0. The request survives exec, but not fork or a change of user or
    group. On other systems than Linux, only the parent's id is checked.
    """
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, with_signal)
    if parent_pid is not None and os.getppid() not in (parent_pid, 0):
        sys.exit("the process that started this one is gone")


def request_tiles() -> None:
    """Ask the kernel to let this process use AMX's tiles. The threads have the permission, too, and processes
    that it forks, but no program that it starts.

    Raises OSError if the kernel refuses: it is older than 5.16, or a thread's signal stack is too small. On
    another kind of machine, the number may mean another system call, so don't call this there.
    """
    syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)


def boot_id() -> str:
    """Return the random id that Linux creates at each boot; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process. Raises OSError."""
    call("prctl", option, value, 0, 0, 0)


def call(function: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0 on success. Raises OSError."""
    if getattr(_libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def syscall(number: int, *arguments: object) -> int:
    """Make a system call without a C library function, and return its result. Raises OSError."""
    wide = (ctypes.c_long(one) if isinstance(one, int) else one for one in (number, *arguments))
    result: int = _libc.syscall(*wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
