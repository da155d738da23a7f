"""Cache the records of workloads, so that a round reads only new records.

Ids identify new records, because clocks may be set back. A transaction that ends late adds records with lower
ids than records already read. So the ids of the last `OVERLAP_S` seconds of a monotonic clock are read again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from cachetools import LRUCache
from sqlalchemy.orm import Session

from records.schedules import schedules
from records.schedules.schedules import Record

# The most cached records. Each has a trace of a few kilobytes. If a job's workloads have more records, every
# round reads some workloads completely.
MAX_RECORDS = 100_000
# Transactions that store records hardly ever take longer. A missed record may be measured again.
OVERLAP_S = 20.0
# Workloads read longer ago are read completely, because too many records of others may have arrived since.
STALE_S = 600.0


@dataclass
class _Entry:
    """The records of a workload on a device class, by trace: all those that existed at `read_at`. `ids` has
    the ids of all records that were read.
    """

    records: dict[str, Record] = field(default_factory=dict)
    ids: set[int] = field(default_factory=set)
    read_at: float = -math.inf

    def __len__(self) -> int:
        """An entry without records takes memory, too."""
        return max(len(self.records), 1)


@dataclass
class _NewestIds:
    """The id of a device class's newest record at several times, oldest first: (time, id)."""

    readings: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, record_id: int) -> None:
        while self.readings and self.readings[0][0] < now - STALE_S - OVERLAP_S:
            self.readings.popleft()
        self.readings.append((now, record_id))

    def complete_at(self, read_at: float) -> int | None:
        """Return an id up to which a reader at `read_at` saw all records; None if unknown."""
        return max((newest for at, newest in self.readings if at <= read_at - OVERLAP_S), default=None)


class RecordCache:
    """The records of the workloads that were used last. `clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_records: int = MAX_RECORDS) -> None:
        self._clock = clock
        self._entries: LRUCache[tuple[str, str], _Entry] = LRUCache(max_records, getsizeof=len)
        self._newest_ids: dict[str, _NewestIds] = {}

    def records(
        self, session: Session, device_class: str, hashes: Collection[str]
    ) -> dict[str, list[Record]]:
        """Return all records of each workload on the device class, at most one for each trace."""
        newest_ids = self._newest_ids.setdefault(device_class, _NewestIds())
        # Read the newest id before the records: records that arrive meanwhile are read next time.
        now, (newest_id, _) = self._clock(), schedules.newest(session, device_class)
        # Remove the entries, because their sizes change.
        entries = {name: self._entries.pop((name, device_class), _Entry()) for name in dict.fromkeys(hashes)}
        complete = {
            name: newest_ids.complete_at(entry.read_at) if entry.read_at >= now - STALE_S else None
            for name, entry in entries.items()
        }
        unread = [name for name, record_id in complete.items() if record_id is None]
        known = {name: record_id for name, record_id in complete.items() if record_id is not None}
        for names, after in ((unread, 0), (list(known), min(known.values(), default=0))):
            ids = schedules.ids_of_workloads(session, device_class, names, after) if names else []
            new = [(record_id, name) for record_id, name in ids if record_id not in entries[name].ids]
            if not new:
                continue
            for record in schedules.of_workloads(session, device_class, names, min(new)[0] - 1):
                entries[record.workload_hash].records[record.trace] = record
            for record_id, name in new:
                entries[name].ids.add(record_id)
        newest_ids.add(now, newest_id)
        for name, entry in entries.items():
            entry.read_at = now
            with suppress(ValueError):  # a single workload with more records than the cache holds
                self._entries[name, device_class] = entry
        return {name: list(entry.records.values()) for name, entry in entries.items()}
