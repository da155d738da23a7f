"""Detect when an administrator sets the clock by which leases lapse, so that no device is blamed for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from records import clock
from records.clock import ClockReading
from records.storage.database import Database
from system.linux import boot_id

log = logging.getLogger(__name__)

CLOCK_MAY_BE_WRONG = "nothing is deleted by its age for a day, in case the clock is wrong now"

# The least jump between two sweeps. A slow adjustment of the clock differs less.
MIN_JUMP_S = 10.0
# After a jump, other processes may use the old time until they read PostgreSQL's clock. Devices call again
# within a minute.
PATIENCE_S = 120.0
# A clock that was set by more than a day may be wrong, so nothing is deleted by its age for a day.
DOUBTFUL_JUMP_S = 86400.0
# A smaller difference isn't stored.
MIN_STORED_CHANGE_S = 1.0
# How often a reading is stored even if nothing changed.
STORE_INTERVAL_S = 600.0


class ClockWatch:
    """Compares the clock with a monotonic timer. The difference is stored, so a scheduler also detects jumps
    while none was running. After a boot, it compares the clock with the last time before.
    """

    def __init__(self, database: Database, timer: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._timer = timer
        self._boot_id = boot_id()
        self._stored: ClockReading | None = None
        self._jumped_at = float("-inf")

    def update(self, now: Callable[[], float]) -> None:
        """Compare the clock with the timer, and store a changed difference. Raises StorageError."""
        if self._stored is None and self._boot_id:
            with self._database.begin() as session:
                self._stored = clock.read(session, self._boot_id)
                if self._stored is None and (previous := clock.latest(session)) is not None:
                    self._stored = self._after_boot(previous, now(), self._timer())
                    clock.write(session, self._boot_id, self._stored)
        time_s, seen_at = self._timer(), now()
        reading = ClockReading(seen_at - time_s, self._stored.jumped_at if self._stored else None, seen_at)
        jump_s = reading.ahead_s - self._stored.ahead_s if self._stored else 0.0
        if abs(jump_s) > MIN_JUMP_S:
            log.warning(
                "the clock was set %+.0f s: leases that lapse now don't count as lost devices", jump_s
            )
            self._jumped_at = time_s
        if abs(jump_s) > DOUBTFUL_JUMP_S:
            log.warning(CLOCK_MAY_BE_WRONG)
            reading = replace(reading, jumped_at=time_s)
        stored_at = (self._stored.seen_at if self._stored else None) or float("-inf")
        if abs(jump_s) > MIN_STORED_CHANGE_S or not 0.0 <= seen_at - stored_at < STORE_INTERVAL_S:
            with self._database.begin() as session:
                clock.write(session, self._boot_id, reading)
            self._stored = reading

    def _after_boot(self, previous: ClockReading, now: float, time_s: float) -> ClockReading:
        """Return the first reading after a boot. A doubt about the clock ends when the machine has run for a
        day, in one or several boots.
        """
        assert previous.seen_at is not None, "it was chosen by this time"
        jumped_at = None
        away_s = now - previous.seen_at
        if abs(away_s) > DOUBTFUL_JUMP_S:
            log.warning("the clock is %+.0f s from when tunefarm last ran: %s", away_s, CLOCK_MAY_BE_WRONG)
            self._jumped_at = jumped_at = time_s
        elif previous.jumped_at is not None:
            jumped_at = time_s - (previous.seen_at - previous.ahead_s - previous.jumped_at)
        return ClockReading(now - time_s, jumped_at, now)

    @property
    def has_jumped(self) -> bool:
        """Whether the clock was set less than `PATIENCE_S` ago, or while no scheduler was running."""
        return self._timer() - self._jumped_at < PATIENCE_S

    @property
    def may_be_wrong(self) -> bool:
        """Whether the clock was set by more than a day less than a day ago."""
        far_at = self._stored.jumped_at if self._stored else None
        return far_at is not None and self._timer() - far_at < DOUBTFUL_JUMP_S
