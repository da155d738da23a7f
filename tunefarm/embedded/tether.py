"""Runs a command that can't outlive the process that started it.

    python -m tunefarm.embedded.tether PROGRAM [ARGUMENT]...

Asks the kernel for SIGTERM when the parent dies, however it dies, then becomes the command. Where the
kernel knows no such request (it is Linux's), the command runs untethered.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The request survives exec, but not fork: children need a tether of their own."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    die_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
