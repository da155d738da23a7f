"""The sweep: every few seconds, it repairs what a lost message or a lost device left behind."""

from __future__ import annotations

import logging

from records.fleet import leases
from records.jobs import jobs
from records.storage.database import StorageError
from scheduler.app import STEP_OF
from scheduler.context import Context
from scheduler.upkeep.builder_fallback import BuilderFallback
from scheduler.upkeep.garbage_collection import GarbageCollector

log = logging.getLogger(__name__)


class Sweeper:
    """Ends lapsed leases, runs the other upkeep when it is due, and wakes every unfinished job."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._builder_fallback = BuilderFallback()
        self._garbage_collector = GarbageCollector()

    def sweep(self) -> None:
        database, now = self._context.database, self._context.now
        try:
            with database.begin() as session:
                leases.expire(session, now())
                unfinished = jobs.unfinished(session)
            self._builder_fallback.check(database, now())
            self._garbage_collector.collect(database, now())
        except StorageError as error:
            log.error("no sweep: %s", error)
            return
        for job in unfinished:
            self._context.wake(STEP_OF[job.state], job.id)
