"""The audit log: changes are written at once, refusals are counted, bounded and written every minute."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping

from cachetools import TTLCache

from records import access
from records.access import AuditEntry, AuditLine
from records.storage.database import Database
from server.waiting import sleep_unless_stopping

_log = logging.getLogger(__name__)

# Refusals fill at most MAX_REFUSED lines, and one for all others, every FLUSH_S seconds.
FLUSH_S = 60.0
MAX_REFUSED = 20
# A worker calls every second, so its calls get one line a day.
DAILY_S = 86400.0
_MAX_DAILY = 10_000
_MAX_CHARS = 200
_OTHERS = AuditEntry("nobody", "any", "", "refused", "many addresses")


class AuditLog:
    """The audit log of one server. `now` returns epoch seconds, and `timer` the seconds of a monotonic timer.

    If a line can't be written, the server logs that and the call continues, because the action has already
    happened.
    """

    def __init__(
        self, database: Database, now: Callable[[], float], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._now = now
        self._refused: Counter[AuditEntry] = Counter()
        self._written_today: TTLCache[AuditEntry, None] = TTLCache(_MAX_DAILY, DAILY_S, timer=timer)

    async def write(self, entry: AuditEntry) -> None:
        """Store one line at once."""
        await asyncio.to_thread(self._store, {_shortened(entry): 1})

    async def write_daily(self, entry: AuditEntry) -> None:
        """Store one line, but only once a day for the same action."""
        if entry in self._written_today:
            return
        self._written_today[entry] = None
        await self.write(entry)

    def count_refused(self, entry: AuditEntry) -> None:
        """Count a refusal; the next `flush` stores it."""
        self._count(_shortened(entry), 1)

    async def flush(self) -> None:
        """Store the refusals counted so far."""
        waiting, self._refused = self._refused, Counter()
        if not await asyncio.to_thread(self._store, waiting):
            for entry, times in waiting.items():
                self._count(entry, times)

    async def flush_regularly(self, stopping: asyncio.Event) -> None:
        """Flush every FLUSH_S seconds until `stopping` is set, and a last time then."""
        is_last = False
        while not is_last:
            await sleep_unless_stopping(stopping, FLUSH_S)
            is_last = stopping.is_set()
            await self.flush()

    def page(self, limit: int, before: int | None) -> list[AuditLine]:
        """Return lines with ids below `before`, newest first. Raises StorageError."""
        with self._database.begin() as session:
            return access.audit(session, limit, before)

    def _count(self, entry: AuditEntry, times: int) -> None:
        fits = entry in self._refused or len(self._refused) < MAX_REFUSED
        self._refused[entry if fits else _OTHERS] += times

    def _store(self, entries: Mapping[AuditEntry, int]) -> bool:
        """Append one line for each action, with the number of times that it happened. Return False if that
        fails."""
        try:
            with self._database.begin() as session:
                access.append_audit(session, entries, self._now())
        except Exception as error:
            _log.error("the audit log can't be written: %s", error)
            return False
        return True


def _shortened(entry: AuditEntry) -> AuditEntry:
    """Return the action with its texts cut, so that clients can't write long lines."""
    return AuditEntry(*(text[:_MAX_CHARS] for text in vars(entry).values()))
