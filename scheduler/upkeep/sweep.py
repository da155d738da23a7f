"""The sweep: every few seconds, repair the effects of lost messages and lost devices. Repairs run in a
separate thread, so that no long step delays the jobs of lost devices. A Celery message wakes the jobs between
two steps, because a busy scheduler needs no wake-ups.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from records import access, clock, webhooks
from records.fleet import leases
from records.jobs import events, jobs
from records.storage.database import StorageError
from scheduler.context import Context
from scheduler.upkeep.builder_fallback import BuilderFallback
from scheduler.upkeep.clock_watch import ClockWatch
from scheduler.upkeep.device_reset import DeviceReset
from scheduler.upkeep.garbage_collection import GarbageCollector
from scheduler.upkeep.outlines import OutlineReader
from scheduler.upkeep.token_reminder import TokenReminder
from scheduler.upkeep.webhook_deliveries import KEPT_S, MAX_WAITING

log = logging.getLogger(__name__)

# The most ended webhook messages, and the most lines of the audit log, that one sweep deletes.
MAX_PRUNED = 1000


class Sweeper:
    """Ends lapsed leases, and runs the other upkeep when it is due."""

    def __init__(
        self,
        context: Context,
        outline_reader: OutlineReader,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context = context
        self._outline_reader = outline_reader
        self._clock_watch = ClockWatch(context.database, timer)
        self._builder_fallback = BuilderFallback()
        self._garbage_collector = GarbageCollector()
        self._token_reminder = TokenReminder()
        self._device_reset = DeviceReset(context.settings.reset_command, timer)
        self._is_first = True

    def repair(self) -> None:
        """End lapsed leases, and run other upkeep that is due. A failure is logged, and the next sweep tries
        again."""
        database, now = self.context.database, self.context.now
        try:
            self._clock_watch.update(now)
            with database.begin() as session:
                clock.correct_future_times(session, now(), self.context.settings.claim_ttl_s)
                if self._clock_watch.has_jumped or self._is_first:
                    clock.correct_history(session, now())
            self._is_first = False
            max_attempts = None if self._clock_watch.has_jumped else leases.MAX_ATTEMPTS
            lapsed = True
            while lapsed:
                with database.begin() as session:
                    lapsed = bool(leases.expire(session, now(), max_attempts))
            with database.reading() as session:
                unfinished = jobs.unfinished(session)
            with database.begin() as session:
                events.drop_old_progress(session, [job.id for job in unfinished])
            self._builder_fallback.update(database, now())
            self._garbage_collector.collect(database, now(), by_age=not self._clock_watch.may_be_wrong)
            self._token_reminder.remind(database, now())
            self._device_reset.check(database, now())
            with database.begin() as session:
                if not self._clock_watch.may_be_wrong:
                    webhooks.prune(session, now() - KEPT_S, MAX_PRUNED)
                    access.prune_audit(session, now() - 86400 * self.context.settings.audit_days, MAX_PRUNED)
                due = webhooks.due(session, now(), MAX_WAITING)
            self._outline_reader.start_waiting()
            for delivery_id in due:
                self.context.wake("deliver", str(delivery_id))
            self.context.metrics.sweeps.labels("well").inc()
        except StorageError as error:
            log.error("no sweep: %s", error)
            self.context.metrics.sweeps.labels("storage away").inc()
