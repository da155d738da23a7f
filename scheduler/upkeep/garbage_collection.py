"""Delete unneeded uploads and files, and workers that haven't called for a long time, every few minutes."""

from __future__ import annotations

import logging

from records.fleet import workers
from records.jobs import deletion
from records.storage import blobs
from records.storage.database import Database

log = logging.getLogger(__name__)

INTERVAL_S = 600.0
# Files deleted in one transaction: few, so that its locks are short.
FILES = 10
TRANSACTIONS = 100
# Workers that were silent for this long are deleted, and sessions that were fenced this long ago.
WORKER_KEPT_S = 30 * 86400.0
WORKERS = 100
# The time from writing a file to committing its row, and the difference between hosts' clocks.
UNNAMED_KEPT_S = 3600.0


class GarbageCollector:
    """The garbage collection of one scheduler. Several schedulers may collect at the same time."""

    def __init__(self) -> None:
        self._collected_at = float("-inf")

    def collect(self, database: Database, now: float, by_age: bool) -> None:
        """Collect garbage if `INTERVAL_S` have passed since the last collection. The next collection deletes
        any excess. Without `by_age`, delete nothing by its age. Raises StorageError.
        """
        # After the clock was set back, the elapsed time is negative. That must not stop the collection.
        if 0.0 <= now - self._collected_at < INTERVAL_S:
            return
        self._collected_at = now
        files = 0
        for _ in range(TRANSACTIONS):
            with database.begin() as session:
                uploads = deletion.drop_uploads(session, now, FILES) if by_age else 0
                dropped = deletion.drop_blobs(session, FILES)
            files += dropped.blobs
            if not uploads and not any(dropped):
                break
        if by_age:
            with database.begin() as session:
                workers.drop_silent(session, now - WORKER_KEPT_S, WORKERS)
            files += blobs.sweep(database, now - UNNAMED_KEPT_S)
        if files:
            log.info("deleted %s files that nothing refers to", files)
