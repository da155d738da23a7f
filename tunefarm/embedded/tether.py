"""Runs a command that can't outlive the process that started it.

    python -m tunefarm.embedded.tether PROGRAM [ARGUMENT]...

Asks the kernel for SIGTERM when the parent dies, however it dies, then becomes the command. Where the
kernel knows no such request (it is Linux's), the command runs untethered.
"""

from __future__ import annotations

import os
import signal
import sys

from system.linux import die_with_parent


def main() -> None:
    die_with_parent(signal.SIGTERM)  # survives exec, but not fork: children need a tether of their own
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
