"""What was measured of workloads, read once: later only what is new is read, so that a round costs the same
however much is known."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from records import schedules
from records.schedules import Record

# Traces take a few kilobytes each, and a workload may have a thousand.
LIMIT = 128
# So much later than newer ones a record may be stored.
OVERLAP_S = 20.0
# What was read longer ago is read whole again: there may be any number of other records meanwhile.
STALE_S = 600.0


@dataclass
class _Known:
    """The records of a workload on a device class by trace, complete until those stored at `read_at`."""

    records: dict[str, Record] = field(default_factory=dict)
    read_at: float = -math.inf


@dataclass
class Memory:
    """The records of the last `LIMIT` workloads asked for."""

    _known: dict[tuple[str, str], _Known] = field(default_factory=dict)

    def records(
        self, session: Session, device_class: str, hashes: Collection[str]
    ) -> dict[str, list[Record]]:
        """Of each workload every record on the device class, one of each trace."""
        newest_at = schedules.newest_at(session, device_class)
        known = {name: self._touch(name, device_class) for name in dict.fromkeys(hashes)}
        unread = [name for name, each in known.items() if each.read_at < newest_at - STALE_S]
        read_at = [each.read_at for name, each in known.items() if name not in unread]
        found = schedules.of_workloads(session, device_class, unread) if unread else []
        if read_at:
            found += schedules.since(session, device_class, min(read_at) - OVERLAP_S)
        for record in found:
            if record.workload_hash in known:
                known[record.workload_hash].records[record.trace] = record
        for each in known.values():
            each.read_at = newest_at
        self._forget(max(LIMIT, len(known)))
        return {name: list(each.records.values()) for name, each in known.items()}

    def _touch(self, name: str, device_class: str) -> _Known:
        known = self._known.pop((name, device_class), None) or _Known()
        self._known[name, device_class] = known
        return known

    def _forget(self, limit: int) -> None:
        for key in list(self._known)[: max(len(self._known) - limit, 0)]:
            del self._known[key]
