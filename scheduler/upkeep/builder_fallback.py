"""Watches builders: a job that leaves it open who builds doesn't wait for ever for those that don't."""

from __future__ import annotations

import logging

from records.fleet import builder_fallback
from records.fleet.builder_fallback import WaitingJob
from records.storage.database import Database

log = logging.getLogger(__name__)

# Longer than any candidate takes to build, and than a builder needs to find out which of several hangs.
PATIENCE_S = 180.0


class BuilderFallback:
    """Of one scheduler, which notes since when it has seen a job wait. It forgets that when it is started
    again."""

    def __init__(self) -> None:
        self._since: dict[WaitingJob, float] = {}

    def look(self, database: Database, now: float) -> None:
        """Raises StorageError."""
        with database.begin() as session:
            waiting = builder_fallback.waiting_jobs(session, now)
        # By a clock that was set back, it has only just begun.
        self._since = {one: min(self._since.get(one, now), now) for one in waiting}
        for one, since in self._since.items():
            if now - since >= PATIENCE_S:
                log.warning("job %s: builders build nothing, so its devices do", one.job_id)
                with database.begin() as session:
                    builder_fallback.build_on_devices(session, one.job_id, now - since, now)
        with database.begin() as session:
            builder_fallback.end_builder_leases(session, now)
