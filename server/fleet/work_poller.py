"""Polls the database for work with a single query for all waiting workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from core.lease import Lease
from records.fleet import fair_queue, reservations, workers
from records.storage.database import Database
from server.waiting import sleep_unless_stopping

POLL_S = 0.1
# The key of builders, in place of a device class. No class has this key.
_BUILDERS = "builders"


@dataclass(frozen=True)
class AvailableWork:
    """The result of one poll.

    classes   the device classes with work
    builds    whether builders have work
    unwanted  the ids of workers that should not wait
    reserved  the ids of reserved workers

    A class is removed once a worker finds that its work is gone, so that the other waiting workers don't try.
    """

    classes: set[str]
    builds: bool
    unwanted: frozenset[str]
    reserved: frozenset[str] = frozenset()


class WorkPoller:
    """The poller that all waiting calls of one server share. It belongs to the event loop."""

    def __init__(self, database: Database, stopping: asyncio.Event, now: Callable[[], float]) -> None:
        self._database = database
        self._stopping = stopping
        self._now = now
        self._polling: asyncio.Task[AvailableWork] | None = None
        # A lock exists as long as a call waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def next_poll(self) -> AvailableWork:
        """Wait for the next poll and return its result. Return at once if the server stops. Raises
        StorageError."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        # Shielded, because a cancelled call must not cancel the poll of the others.
        return await asyncio.shield(self._polling)

    async def lease_for_builder(
        self, work: AvailableWork, acquire: Callable[[], Lease | None]
    ) -> Lease | None:
        """Run `acquire` in a thread and return its lease; None if there is nothing to build.

        One builder tries at a time. If it finds nothing, the next one still tries, because builders link for
        different platforms.
        """
        async with self._lock(_BUILDERS):
            return await asyncio.to_thread(acquire) if work.builds else None

    async def lease_for_device(
        self, work: AvailableWork, worker_id: str, device_class: str, acquire: Callable[[], Lease | None]
    ) -> Lease | None:
        """Run `acquire` in a thread and return its lease; None if the device class has no work.

        One worker of each class tries at a time. If it finds nothing, no other tries, unless it is reserved:
        the work may be that of other users.
        """
        async with self._lock(device_class):
            if device_class not in work.classes:
                return None
            lease = await asyncio.to_thread(acquire)
            if lease is None and worker_id not in work.reserved:
                work.classes.discard(device_class)
            return lease

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _poll(self) -> AvailableWork:
        await sleep_unless_stopping(self._stopping, POLL_S)
        return await asyncio.to_thread(self._find)

    def _find(self) -> AvailableWork:
        with self._database.begin() as session:
            now = self._now()
            waiting = fair_queue.waiting(session, now)
            return AvailableWork(
                waiting.device_classes,
                waiting.has_unbuilt,
                frozenset(workers.not_taking_work(session)),
                frozenset(reservations.reserved_workers(session, now)),
            )
