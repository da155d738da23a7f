"""A filter in the kernel (seccomp) that keeps a process from sockets, keyrings and signals to its reaper."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from socket import AF_UNIX

_KEYRINGS = ("add_key", "keyctl", "request_key")
# Each call with the position of the process id that it takes.
_SIGNALS = (
    *(("kill", 0), ("tkill", 0), ("tgkill", 0), ("rt_sigqueueinfo", 0), ("rt_tgsigqueueinfo", 0)),
    *(("pidfd_open", 0), ("tgkill", 1), ("rt_tgsigqueueinfo", 1)),
)
_PID_BITS = 0xFFFFFFFF  # the kernel ignores the other half of the register
_NEGATIVE = 0x80000000


def load(may_connect: bool, protected: Sequence[int]) -> None:
    """Have the kernel refuse calls of this process and of all that it starts.

    Sockets can only be AF_UNIX: other families reach machines, and AF_VSOCK does so outside of the network
    namespace. Without `may_connect`, AF_UNIX sockets reach nothing either. Keyrings may hold the user's
    secrets. Processes with an id in `protected` can't be signalled. Raises OSError where the kernel or
    libseccomp has no such filter.
    """
    try:
        import pyseccomp  # looks for libseccomp when it is imported

        refuse = pyseccomp.ERRNO(errno.EPERM)
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for call in ("socket", "socketpair"):
            rules.add_rule(refuse, call, pyseccomp.Arg(0, pyseccomp.NE, AF_UNIX))
        rules.add_rule(refuse, "io_uring_setup")  # opens sockets too
        for call in _KEYRINGS:
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
