"""Deletes unneeded models and files, and workers that haven't called for a long time, every few minutes."""

from __future__ import annotations

import logging

from records.fleet import workers
from records.jobs import deletion
from records.storage import blobs
from records.storage.database import Database

log = logging.getLogger(__name__)

INTERVAL_S = 600.0
# Files deleted in one transaction: few, so that nobody waits for its locks for long.
FILES = 10
TRANSACTIONS = 100
# A worker that was silent for so long is forgotten, and so is a session that was fenced off then.
WORKER_KEPT_S = 30 * 86400.0
WORKERS = 100
# A file of the blob store gets its row within a transaction; clocks of hosts differ.
UNNAMED_KEPT_S = 3600.0


class GarbageCollector:
    """The garbage collection of one scheduler. Several schedulers may collect at the same time."""

    def __init__(self) -> None:
        self._collected_at = float("-inf")

    def collect(self, database: Database, now: float, by_age: bool) -> None:
        """Delete what is due if `INTERVAL_S` have passed since the last time; too much is left for the next.

        Without `by_age`, only delete what needs no clock to be found. Raises StorageError.
        """
        # The elapsed time is negative after the clock was set back, which must not end the collection.
        if 0.0 <= now - self._collected_at < INTERVAL_S:
            return
        self._collected_at = now
        files = 0
        for _ in range(TRANSACTIONS):
            with database.begin() as session:
                models = deletion.drop_models(session, now, FILES) if by_age else 0
                dropped = deletion.drop_blobs(session, FILES)
            files += dropped.blobs
            if not models and not any(dropped):
                break
        if by_age:
            with database.begin() as session:
                workers.drop_silent(session, now - WORKER_KEPT_S, WORKERS)
            files += blobs.sweep(database, now - UNNAMED_KEPT_S)
        if files:
            log.info("deleted %s files that nothing refers to", files)
