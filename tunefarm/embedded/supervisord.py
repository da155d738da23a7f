"""Run supervisord, and keep it running while the disk with its logs is full.

    python -m tunefarm.embedded.supervisord [ARGUMENT]...

A log handler of supervisord that can't write prints a traceback to standard error, which is on the same disk,
so the next exception ends supervisord. After a failed rotation, supervisord no longer reads the process's
output, and the process blocks. Here, only log messages are lost.
"""

from __future__ import annotations

import contextlib
from typing import Any

from supervisor import loggers, supervisord

_roll_over = loggers.RotatingFileHandler.doRollover


def main() -> None:
    """Run supervisord with the arguments of this process."""
    loggers.Handler.handleError = _lose
    loggers.RotatingFileHandler.doRollover = _roll_over_if_possible
    supervisord.main()


def _lose(_handler: Any) -> None:
    """Drop the message that could not be written."""


def _roll_over_if_possible(handler: Any) -> None:
    try:
        _roll_over(handler)
    except (OSError, ValueError):
        # The stream may be closed already, and the next message needs one.
        with contextlib.suppress(OSError, ValueError):
            handler.stream.close()
        with contextlib.suppress(OSError):
            handler.reopen()


if __name__ == "__main__":
    main()
