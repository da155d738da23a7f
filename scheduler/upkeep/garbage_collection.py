"""Deletes models and files that no job needs any more, now and then."""

from __future__ import annotations

import logging

from records.jobs import deletion
from records.storage.database import Database

log = logging.getLogger(__name__)

INTERVAL_S = 600.0
# Files deleted in one transaction: few, so that nobody waits for its locks for long.
FILES = 10
TRANSACTIONS = 100


class GarbageCollector:
    """The garbage collection of one scheduler. Several schedulers may collect at the same time."""

    def __init__(self) -> None:
        self._collected_at = float("-inf")

    def collect(self, database: Database, now: float) -> None:
        """Delete files if `INTERVAL_S` have passed since the last time; too many are left for the next time.

        Raises StorageError.
        """
        # The elapsed time is negative after the clock was set back, which must not end the collection.
        if 0.0 <= now - self._collected_at < INTERVAL_S:
            return
        self._collected_at = now
        files = 0
        for _ in range(TRANSACTIONS):
            with database.begin() as session:
                models = deletion.drop_models(session, now, FILES)
                dropped = deletion.drop_blobs(session, FILES)
            files += dropped
            if models < FILES and dropped < FILES:
                break
        if files:
            log.info("deleted %s files that nothing refers to", files)
