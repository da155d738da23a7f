"""The audit log as the server writes it: what was changed at once, what was refused counted and bounded."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from records import access
from records.access import Act, AuditLine
from records.storage.database import Database

_log = logging.getLogger(__name__)

# What strangers are refused fills at most so many lines in this time, whatever they send.
FLUSH_S = 60.0
MAX_REFUSED = 20
# A worker calls every second: that it did is worth a line a day.
ROUTINE_S = 86400.0
_MAX_ROUTINE = 10_000
_MAX_CHARS = 200
_OTHERS = Act("nobody", "any", "", "refused", "many addresses")


class AuditLog:
    """Lines older than `keep_s` are deleted. A log that can't be written is a line in the server's own log:
    what it would tell of has happened already."""

    def __init__(self, database: Database, now: Callable[[], float], keep_s: float) -> None:
        self._database = database
        self._now = now
        self._keep_s = keep_s
        self._refused: Counter[Act] = Counter()
        self._routine: dict[Act, float] = {}

    async def write(self, act: Act) -> None:
        """One line, stored before this returns."""
        await asyncio.to_thread(self._store, {_short(act): 1})

    async def routine(self, act: Act) -> None:
        """As `write`, but once a day for the same act."""
        if self._now() - self._routine.get(act, float("-inf")) < ROUTINE_S:
            return
        if len(self._routine) >= _MAX_ROUTINE:
            self._routine.clear()
        self._routine[act] = self._now()
        await self.write(act)

    def refused(self, act: Act) -> None:
        """Counted, and stored by the next `flush`."""
        self._count(_short(act), 1)

    async def flush(self) -> None:
        """Stores what was counted, and deletes what is old."""
        waiting, self._refused = self._refused, Counter()
        if not await asyncio.to_thread(self._store, waiting, prune=True):
            for act, times in waiting.items():
                self._count(act, times)

    async def tend(self, stopping: asyncio.Event) -> None:
        """Flushes regularly until `stopping` is set, and once more then."""
        while not stopping.is_set():
            try:
                await asyncio.wait_for(stopping.wait(), FLUSH_S)
            except TimeoutError:
                await self.flush()
        await self.flush()

    def page(self, limit: int, before: int | None) -> list[AuditLine]:
        """Newest first, with ids below `before`. Raises StorageError."""
        with self._database.begin() as session:
            return access.audit(session, limit, before)

    def _count(self, act: Act, times: int) -> None:
        room = act in self._refused or len(self._refused) < MAX_REFUSED
        self._refused[act if room else _OTHERS] += times

    def _store(self, acts: Mapping[Act, int], *, prune: bool = False) -> bool:
        now = self._now()
        try:
            with self._database.begin() as session:
                access.append_audit(session, acts, now)
                if prune:
                    access.prune_audit(session, now - self._keep_s)
        except Exception as error:
            _log.error("the audit log can't be written: %s", error)
            return False
        return True


def _short(act: Act) -> Act:
    """No line is longer than a few of these, whatever a client sends."""
    return Act(*(text[:_MAX_CHARS] for text in vars(act).values()))
