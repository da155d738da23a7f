"""Notices when the clock by which leases lapse is set, which is no fault of the devices that hold them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

# A clock that is adjusted slowly differs less between two sweeps.
JUMP_S = 10.0
# After a jump, other processes may go by the old time until they look at PostgreSQL's clock, and devices call
# again within a minute.
PATIENCE_S = 120.0


class ClockWatch:
    """Compares the clock with a timer, which nobody can set."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self._ahead_s: float | None = None
        self._jumped_at = float("-inf")

    def has_jumped(self, now: float) -> bool:
        """Return whether the clock, which says `now`, was set less than `PATIENCE_S` ago."""
        time_s = self._timer()
        ahead_s = now - time_s
        if self._ahead_s is not None and abs(jump_s := ahead_s - self._ahead_s) > JUMP_S:
            log.warning("the clock was set %+.0f s: leases that lapse now count no lost device", jump_s)
            self._jumped_at = time_s
        self._ahead_s = ahead_s
        return time_s - self._jumped_at < PATIENCE_S
