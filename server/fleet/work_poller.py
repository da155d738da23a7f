"""Looks for work on behalf of all workers that wait: one look at the database, however many they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakValueDictionary

from core.lease import Lease
from records.fleet import devices
from records.jobs import fair_queue
from records.storage.database import Database
from server.api.events import pause

POLL_S = 0.1
# No device class is called so.
_BUILDERS = "builders"


@dataclass(frozen=True)
class AvailableWork:
    """What a look has found: the device classes with work, whether there is any for builders, and the workers
    that should not wait for any.

    A class is taken out when somebody found its work gone, so that not everybody who waits tries.
    """

    classes: set[str]
    builds: bool
    unwanted: frozenset[str]


class WorkPoller:
    """Shared by the calls that one server holds back."""

    def __init__(self, database: Database, stopping: asyncio.Event, now: Callable[[], float]) -> None:
        self._database = database
        self._stopping = stopping
        self._now = now
        self._looking: asyncio.Task[AvailableWork] | None = None
        # A lock is there as long as somebody waits for it.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def next(self) -> AvailableWork:
        """The next look, at once when the server stops. Raises StorageError."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        # One who gives up waiting must not end the look for the others.
        return await asyncio.shield(self._looking)

    async def take_to_build(self, look: AvailableWork, take: Callable[[], Lease | None]) -> Lease | None:
        """Has `take` try, in a thread, unless there is nothing to build; one builder at a time.

        What one builder finds no work in, another may: they link for different machines.
        """
        async with self._turn(_BUILDERS):
            return await asyncio.to_thread(take) if look.builds else None

    async def take(
        self, look: AvailableWork, device_class: str, take: Callable[[], Lease | None]
    ) -> Lease | None:
        """Has `take` try, in a thread, unless the class has no work; one at a time of each class."""
        async with self._turn(device_class):
            if device_class not in look.classes:
                return None
            found = await asyncio.to_thread(take)
            if found is None:
                look.classes.discard(device_class)
            return found

    def _turn(self, name: str) -> asyncio.Lock:
        return self._turns.setdefault(name, asyncio.Lock())

    async def _look(self) -> AvailableWork:
        await pause(self._stopping, POLL_S)
        return await asyncio.to_thread(self._find)

    def _find(self) -> AvailableWork:
        with self._database.begin() as session:
            waiting = fair_queue.waiting(session, self._now())
            return AvailableWork(
                waiting.device_classes, waiting.has_unbuilt, frozenset(devices.not_taking_work(session))
            )
