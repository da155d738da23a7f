"""Look-ups of best schedules. One query answers all look-ups that arrive while the previous one runs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from records import devices
from records.schedules import schedules
from records.schedules.schedules import Record
from records.storage.database import Database

_Found = dict[str, Record]


@dataclass(frozen=True)
class ClassFacts:
    """The part of a device class that look-ups return. `title` is for messages. `threads` is the number of a
    CPU's threads; None for a GPU."""

    key: str
    title: str
    toolchain: str
    threads: int | None


class LookUps:
    """Looks up the best schedules, by workload. It belongs to the event loop. Its methods raise
    StorageError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Device classes by key. They never change.
        self._facts: dict[str, ClassFacts] = {}
        self._asked: list[tuple[str, str, asyncio.Future[_Found]]] = []
        self._answering: asyncio.Task[None] | None = None

    def known(self, key: str) -> bool:
        """Return whether this key of a device class was looked up before."""
        return key in self._facts

    async def facts(self, key: str) -> ClassFacts:
        """Return a device class by its key. Raises DeviceClassNotFound."""
        if key not in self._facts:
            self._facts[key] = await run_in_threadpool(self._read_facts, key)
        return self._facts[key]

    async def best(self, workload: str, key: str) -> Record | None:
        """Return the workload's record from `schedules.best_many`."""
        answer: asyncio.Future[_Found] = asyncio.get_running_loop().create_future()
        self._asked.append((workload, key, answer))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer())
        return (await answer).get(workload)

    async def best_many(self, workloads: Collection[str], key: str) -> _Found:
        """Return what `schedules.best_many` returns."""
        return await run_in_threadpool(self._best_many, workloads, key)

    async def best_nearest(self, workloads: Collection[str], key: str) -> _Found:
        """Return what `schedules.best_nearest` returns. Raises DeviceClassNotFound."""
        return await run_in_threadpool(self._best_nearest, workloads, key)

    async def _answer(self) -> None:
        """Answer the look-ups that arrived while the last query ran, until there are none."""
        while self._asked:
            asked, self._asked = self._asked, []
            workloads: defaultdict[str, set[str]] = defaultdict(set)
            for workload, key, _ in asked:
                workloads[key].add(workload)
            for key, its in workloads.items():
                waiting = [answer for _, of, answer in asked if of == key]
                try:
                    found = await self.best_many(its, key)
                except Exception as error:
                    for answer in waiting:
                        if not answer.done():  # cancelled because its client disconnected
                            answer.set_exception(error)
                else:
                    for answer in waiting:
                        if not answer.done():
                            answer.set_result(found)
        self._answering = None

    def _read_facts(self, key: str) -> ClassFacts:
        with self._database.reading() as session:
            device = devices.get_class(session, key)
        return ClassFacts(key, device.title, device.toolchain, None if device.gpu else device.cores)

    def _best_many(self, workloads: Collection[str], key: str) -> _Found:
        with self._database.reading() as session:
            return schedules.best_many(session, workloads, key)

    def _best_nearest(self, workloads: Collection[str], key: str) -> _Found:
        with self._database.reading() as session:
            return schedules.best_nearest(session, workloads, key)
