"""What was measured of workloads, read once: later only what is new is read, so that a round costs the same
however much is known.

What is new is told by ids, because clocks may be set back. Ids of transactions that end late show up late, so
whatever came within the last `OVERLAP_S` is read again, by a clock that nobody sets.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from records.schedules import schedules
from records.schedules.schedules import Record

# Traces take a few kilobytes each, and a workload may have a thousand.
LIMIT = 128
# Transactions that store records hardly ever take longer. What is missed all the same may be measured again.
OVERLAP_S = 20.0
# What was read longer ago is read whole again: there may be any number of other records meanwhile.
STALE_S = 600.0


@dataclass
class _Known:
    """The records of a workload on a device class by trace, complete but for what came in since `read_at`."""

    records: dict[str, Record] = field(default_factory=dict)
    read_at: float = -math.inf


@dataclass
class _Marks:
    """Which record of a device class was the newest at which times, as far back as anybody may ask."""

    seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, now: float, record_id: int) -> None:
        while self.seen and self.seen[0][0] < now - STALE_S - OVERLAP_S:
            self.seen.popleft()
        self.seen.append((now, record_id))

    def complete(self, read_at: float) -> int | None:
        """Who read at that time had all records up to this one; None when nobody can tell."""
        return max((newest for at, newest in self.seen if at <= read_at - OVERLAP_S), default=None)


@dataclass
class RecordCache:
    """The records of the last `LIMIT` workloads asked for. `clock` gives seconds and only goes forward."""

    clock: Callable[[], float] = time.monotonic
    _known: dict[tuple[str, str], _Known] = field(default_factory=dict)
    _marks: dict[str, _Marks] = field(default_factory=dict)

    def records(
        self, session: Session, device_class: str, hashes: Collection[str]
    ) -> dict[str, list[Record]]:
        """Of each workload every record on the device class, one of each trace."""
        marks = self._marks.setdefault(device_class, _Marks())
        # Before anything is read: what comes in meanwhile is read the next time.
        now, (newest, _) = self.clock(), schedules.newest(session, device_class)
        known = {name: self._touch(name, device_class) for name in dict.fromkeys(hashes)}
        for record in self._news(session, device_class, known, marks, now):
            if record.workload_hash in known:
                known[record.workload_hash].records[record.trace] = record
        marks.note(now, newest)
        for each in known.values():
            each.read_at = now
        self._forget(max(LIMIT, len(known)))
        return {name: list(each.records.values()) for name, each in known.items()}

    def _news(
        self, session: Session, device_class: str, known: dict[str, _Known], marks: _Marks, now: float
    ) -> list[Record]:
        """All records of those that were read too long ago, and what the others don't have."""
        complete = {
            name: marks.complete(each.read_at)
            for name, each in known.items()
            if each.read_at >= now - STALE_S
        }
        unread = [name for name in known if complete.get(name) is None]
        found = schedules.of_workloads(session, device_class, unread) if unread else []
        since = [record_id for record_id in complete.values() if record_id is not None]
        return found + (schedules.after(session, device_class, min(since)) if since else [])

    def _touch(self, name: str, device_class: str) -> _Known:
        known = self._known.pop((name, device_class), None) or _Known()
        self._known[name, device_class] = known
        return known

    def _forget(self, limit: int) -> None:
        for key in list(self._known)[: max(len(self._known) - limit, 0)]:
            del self._known[key]
