"""Run a program that ends when its parent process ends.

    python -m tunefarm.embedded.die_with_parent PROGRAM [ARGUMENT]...

On Linux, the kernel is asked to send SIGTERM when the parent dies. Then this process executes the program.
Other systems only execute it.
"""

from __future__ import annotations

import os
import signal
import sys

from system.linux import die_with_parent


def main() -> None:
    # This survives exec, but not fork, so the program's children need their own.
    die_with_parent(signal.SIGTERM)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
