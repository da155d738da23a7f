"""Runs a program that ends when the process that started it ends.

    python -m tunefarm.embedded.die_with_parent PROGRAM [ARGUMENT]...

On Linux, asks the kernel for SIGTERM when the parent dies, however it dies; then becomes the program.
Elsewhere it only becomes the program.
"""

from __future__ import annotations

import os
import signal
import sys

from system.linux import die_with_parent


def main() -> None:
    die_with_parent(signal.SIGTERM)  # survives exec, but not fork: the program's children need their own
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
