"""Polls the database for new events on behalf of all subscribers, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.concurrency import run_in_threadpool

from records.jobs import events, jobs
from records.jobs.events import Event
from records.storage.database import Database
from server.waiting import sleep_unless_stopping

POLL_S = 0.3
# The most events of a page. A poll leaves further events to the next poll.
PAGE = 200
_MAX_IN_POLL = 5000


class Page(NamedTuple):
    """The next events of a job, at most PAGE, and whether they are the last ones of a finished job."""

    events: list[Event]
    finished: bool


class EventCursor(NamedTuple):
    """A subscriber's position in a job's events: after the event with this id."""

    job_id: str
    after: int


@dataclass(eq=False)
class _Watcher:
    """A subscriber waiting for events after a given id."""

    cursor: EventCursor
    page: asyncio.Future[Page] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, answer: Page | Exception) -> None:
        if self.page.done():  # cancelled because its client disconnected
            return
        if isinstance(answer, Exception):
            self.page.set_exception(answer)
        else:
            self.page.set_result(answer)


class EventFeed:
    """The event feed that all event streams of one server share. It belongs to the event loop."""

    def __init__(self, database: Database, stopping: asyncio.Event) -> None:
        self._database = database
        self._stopping = stopping
        self._watchers: set[_Watcher] = set()
        self._polling: asyncio.Task[None] | None = None

    async def read(self, cursor: EventCursor) -> Page:
        """Return the job's present events after a cursor, without waiting. Raises JobNotFound,
        StorageError."""
        pages = await run_in_threadpool(self._read, {cursor})
        if cursor not in pages:
            raise jobs.JobNotFound(f"there is no job {cursor.job_id!r}")
        return pages[cursor]

    async def wait(self, cursor: EventCursor) -> Page:
        """Wait for the job's next events and return them. Return none if the job has finished or the server
        stops.

        Raises StorageError.
        """
        watcher = _Watcher(cursor)
        self._watchers.add(watcher)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll_while_watched())
        try:
            return await watcher.page
        finally:
            self._watchers.discard(watcher)

    async def _poll_while_watched(self) -> None:
        while self._watchers:
            await sleep_unless_stopping(self._stopping, POLL_S)
            waiting = list(self._watchers)
            try:
                pages = await run_in_threadpool(self._read, {watcher.cursor for watcher in waiting})
            except Exception as error:
                # The result belongs to these watchers. The next poll serves later ones.
                for watcher in waiting:
                    watcher.answer(error)
            else:
                for watcher in waiting:
                    page = pages.get(watcher.cursor, Page([], finished=True))
                    if page.events or page.finished or self._stopping.is_set():
                        watcher.answer(page)
            self._watchers = {watcher for watcher in self._watchers if not watcher.page.done()}

    def _read(self, cursors: Collection[EventCursor]) -> dict[EventCursor, Page]:
        """Return the events after each position; none if its job is unknown."""
        pages, left = {}, _MAX_IN_POLL
        with self._database.reading() as session:
            ends = events.ends(session, {cursor.job_id for cursor in cursors})
            for cursor in cursors:
                if cursor.job_id not in ends:
                    continue
                found, end = [], ends[cursor.job_id]
                if end.last_id > cursor.after:
                    found = events.since(session, cursor.job_id, cursor.after, min(PAGE, left))
                    left -= len(found)
                is_last = end.last_id <= cursor.after or (bool(found) and found[-1].id >= end.last_id)
                pages[cursor] = Page(found, end.finished and is_last)
        return pages
