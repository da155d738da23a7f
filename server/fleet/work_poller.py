"""Polls the database for work with a single query for all waiting workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
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
        self._polling: asyncio.Task[None] | None = None
        # What each waiting call waits for. Only calls that a poll concerns are resumed.
        self._waiting: dict[asyncio.Future[AvailableWork], Callable[[AvailableWork], bool]] = {}
        # A lock exists as long as a call waits for it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def next_work(
        self, concerns: Callable[[AvailableWork], bool], timeout_s: float
    ) -> AvailableWork | None:
        """Wait for the next poll that concerns the caller and return its result; None after `timeout_s`.

        Return at once if the server stops. Raises StorageError.
        """
        found: asyncio.Future[AvailableWork] = asyncio.get_running_loop().create_future()
        self._waiting[found] = concerns
        if self._polling is None or self._polling.done():
            # In an empty context, because its log lines are not about the worker that calls first.
            self._polling = asyncio.create_task(self._poll(), context=Context())
        try:
            await asyncio.wait([found], timeout=timeout_s)
        finally:
            self._waiting.pop(found, None)
        return found.result() if found.done() else None

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

    async def _poll(self) -> None:
        """Poll while calls wait, and resume the calls that a poll concerns, or all after a failure."""
        while self._waiting:
            await sleep_unless_stopping(self._stopping, POLL_S)
            try:
                work = await asyncio.to_thread(self._find)
            except Exception as error:
                for found in self._waiting:
                    found.set_exception(error)
                self._waiting.clear()
                continue
            for found, concerns in list(self._waiting.items()):
                if self._stopping.is_set() or concerns(work):
                    del self._waiting[found]
                    found.set_result(work)

    def _find(self) -> AvailableWork:
        # The results may be stale or disagree, because `acquire` checks them in its transaction.
        with self._database.reading() as session:
            now = self._now()
            waiting = fair_queue.waiting(session, now)
            return AvailableWork(
                waiting.device_classes,
                waiting.has_unbuilt,
                frozenset(workers.not_taking_work(session)),
                frozenset(reservations.reserved_workers(session, now)),
            )
