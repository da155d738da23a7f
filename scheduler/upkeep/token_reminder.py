"""Log a warning for tokens that expire within 14 days, once a day."""

from __future__ import annotations

import logging

from records import access
from records.storage.database import Database

log = logging.getLogger(__name__)

INTERVAL_S = 86400.0


class TokenReminder:
    """The reminders of one scheduler."""

    def __init__(self) -> None:
        self._reminded_at = float("-inf")

    def remind(self, database: Database, now: float) -> None:
        """Warn of each token that expires soon, if `INTERVAL_S` have passed. Raises StorageError."""
        # After the clock was set back, the elapsed time is negative. That must not stop the reminders.
        if 0.0 <= now - self._reminded_at < INTERVAL_S:
            return
        self._reminded_at = now
        with database.begin() as session:
            ending = access.ending_tokens(session, now)
        for token in ending:
            days = ((token.expires_at or now) - now) / 86400
            log.warning(
                "token %s (%s) expires in %.1f days: make another with `tunefarm token create`",
                token.id,
                token.name,
                days,
            )
