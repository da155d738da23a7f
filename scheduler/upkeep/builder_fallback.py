"""The builder fallback: when builders build nothing for a job, its devices build for themselves.

This holds for jobs that leave it open who builds for them.
"""

from __future__ import annotations

import logging

from records.fleet import builder_fallback
from records.fleet.builder_fallback import WaitingJob
from records.storage.database import Database

log = logging.getLogger(__name__)

# Longer than any candidate takes to build, and than a builder takes to find out which of several hangs.
PATIENCE_S = 180.0


class BuilderFallback:
    """Notes how long each job has waited for builders; a scheduler that starts begins anew."""

    def __init__(self) -> None:
        self._since: dict[WaitingJob, float] = {}

    def check(self, database: Database, now: float) -> None:
        """Let the devices build for jobs that have waited longer than `PATIENCE_S`. Raises StorageError."""
        with database.begin() as session:
            waiting = builder_fallback.waiting_jobs(session, now)
        # If the clock was set back, the wait begins anew.
        self._since = {job: min(self._since.get(job, now), now) for job in waiting}
        for job, since in self._since.items():
            if now - since >= PATIENCE_S:
                log.warning("job %s: builders build nothing, so its devices do", job.job_id)
                with database.begin() as session:
                    builder_fallback.build_on_devices(session, job.job_id, now - since, now)
        with database.begin() as session:
            builder_fallback.end_builder_leases(session, now)
