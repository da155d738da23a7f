"""Now and then, what nobody needs any more is deleted."""

from __future__ import annotations

import logging

from records.jobs import deletion
from records.storage.database import Database

log = logging.getLogger(__name__)

INTERVAL_S = 600.0
# In one transaction: nobody shall have to wait for long.
FILES = 10
TRANSACTIONS = 100


class GarbageCollector:
    """Of one scheduler. Others may do the same at the same time."""

    def __init__(self) -> None:
        self._tidied_at = float("-inf")

    def tidy(self, database: Database, now: float) -> None:
        """If it is time again; what is left then waits for the next time. Raises StorageError."""
        # A clock that was set back must not end it.
        if 0.0 <= now - self._tidied_at < INTERVAL_S:
            return
        self._tidied_at = now
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
