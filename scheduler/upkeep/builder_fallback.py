"""The builder fallback: if builders build nothing for a job, its devices build the candidates.

It applies to jobs with `build` AUTO.
"""

from __future__ import annotations

import logging

from records.fleet import builder_fallback
from records.fleet.builder_fallback import WaitingJob
from records.storage.database import Database

log = logging.getLogger(__name__)

# Longer than building any candidate takes, and than a builder needs to find a hanging candidate in a batch.
PATIENCE_S = 180.0


class BuilderFallback:
    """Tracks how long each job has waited for builders. A new scheduler starts from zero."""

    def __init__(self) -> None:
        self._since: dict[WaitingJob, float] = {}

    def update(self, database: Database, now: float) -> None:
        """Let the devices build for jobs that have waited longer than `PATIENCE_S`. Raises StorageError."""
        with database.begin() as session:
            waiting = builder_fallback.waiting_jobs(session, now)
        # If the clock was set back, the wait restarts.
        self._since = {job: min(self._since.get(job, now), now) for job in waiting}
        for job, since in self._since.items():
            if now - since >= PATIENCE_S:
                log.warning("job %s: builders build nothing, so its devices do", job.job_id)
                with database.begin() as session:
                    builder_fallback.build_on_devices(session, job.job_id, now - since, now)
        with database.begin() as session:
            holding = builder_fallback.holding_builders(session)
        for worker_id, session_id in holding:
            with database.begin() as session:
                builder_fallback.end_builder_lease(session, worker_id, session_id, now)
