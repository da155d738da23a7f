"""Have the kernel refuse system calls (seccomp) that reach, signal or burden what is outside a sandbox."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from socket import AF_UNIX

_KEYRINGS = ("add_key", "keyctl", "request_key")
# Calls that make memory which no process has to map, so that no limit counts it. Objects of System V also
# outlive their makers where there is no IPC namespace.
_UNCOUNTED_MEMORY = ("memfd_create", "memfd_secret", "shmget", "semget", "msgget")
# System calls, each with the position of its argument with a process id.
_SIGNALS = (
    *(("kill", 0), ("tkill", 0), ("tgkill", 0), ("rt_sigqueueinfo", 0), ("rt_tgsigqueueinfo", 0)),
    *(("pidfd_open", 0), ("tgkill", 1), ("rt_tgsigqueueinfo", 1)),
)
_PID_BITS = 0xFFFFFFFF  # the kernel ignores the other half of the register
_NEGATIVE = 0x80000000


def load(may_connect: bool, protected: Sequence[int], *, has_driver: bool) -> None:
    """Let the kernel refuse some system calls of this process and of its children.

    Sockets can only be AF_UNIX, because other families reach machines, AF_VSOCK even outside of the network
    namespace. Without `may_connect`, AF_UNIX sockets can't connect. Keyrings, which may hold the user's
    secrets, are refused. Processes with an id in `protected` can't be signalled. Only a child with a GPU's
    driver (`has_driver`) may have files in memory. Raises OSError if the kernel or libseccomp doesn't support
    the filter.
    """
    try:
        import pyseccomp  # its import searches for libseccomp

        refuse = pyseccomp.ERRNO(errno.EPERM)
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for call in ("socket", "socketpair"):
            rules.add_rule(refuse, call, pyseccomp.Arg(0, pyseccomp.NE, AF_UNIX))
        rules.add_rule(refuse, "io_uring_setup")  # io_uring opens sockets, too
        for call in (*_KEYRINGS, *(() if has_driver else _UNCOUNTED_MEMORY)):
            rules.add_rule(refuse, call)
        if not may_connect:
            for call in ("connect", "sendmsg", "sendmmsg"):
                rules.add_rule(refuse, call)
            rules.add_rule(refuse, "sendto", pyseccomp.Arg(4, pyseccomp.NE, 0))  # to an address
        for pid in protected:
            for call, place in _SIGNALS:
                rules.add_rule(refuse, call, pyseccomp.Arg(place, pyseccomp.MASKED_EQ, _PID_BITS, pid))
        if protected:  # -1 stands for all processes, other negative numbers for groups
            rules.add_rule(refuse, "kill", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, _NEGATIVE, _NEGATIVE))
        rules.load()
    except (ImportError, RuntimeError) as error:
        raise OSError(errno.ENOSYS, str(error)) from error
