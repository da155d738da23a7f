"""Watches builders: a job that leaves it open who builds doesn't wait for ever for those that don't."""

from __future__ import annotations

import logging

from records import relief
from records.database import Database
from records.relief import Awaited

log = logging.getLogger(__name__)

# Longer than any candidate takes to build, and than a builder needs to find out which of several hangs.
PATIENCE_S = 180.0


class Relief:
    """Of one scheduler, which notes since when it has seen a job wait. It forgets that when it is started
    again."""

    def __init__(self) -> None:
        self._since: dict[Awaited, float] = {}

    def look(self, database: Database, now: float) -> None:
        """Raises StorageError."""
        with database.begin() as session:
            waiting = relief.awaited(session, now)
        # By a clock that was set back, it has only just begun.
        self._since = {one: min(self._since.get(one, now), now) for one in waiting}
        for one, since in self._since.items():
            if now - since >= PATIENCE_S:
                log.warning("job %s: builders build nothing, so its devices do", one.job_id)
                with database.begin() as session:
                    relief.relieve(session, one.job_id, now - since, now)
        with database.begin() as session:
            relief.take_back(session, now)
