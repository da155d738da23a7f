"""Limits on calls that stay open for long, such as uploads and event streams: for one client and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from server.access.authentication import AccessDenied

RETRY_AFTER_S = 5


class OpenCalls:
    """Counts the open calls of a kind, such as "uploads". Belongs to the event loop.

    There may be `most` of them, and one client may have half of those.
    """

    def __init__(self, kind: str, most: int) -> None:
        self._kind = kind
        self._most = most
        self._most_of_one = max(most // 2, 1)
        self._by_client: Counter[str | None] = Counter()

    @contextmanager
    def counted(self, client: str | None) -> Iterator[None]:
        """Count a call while it is open. The client None has no individual limit. Raises AccessDenied above a
        limit.
        """
        remedy = f"wait until one has ended, and try again in {RETRY_AFTER_S} s"
        if self._by_client.total() >= self._most:
            cause = f"this server takes {self._most} {self._kind} at a time, and all of them are open"
            raise AccessDenied(503, "busy", cause, remedy, retry_after_s=RETRY_AFTER_S)
        if client is not None and self._by_client[client] >= self._most_of_one:
            cause = f"a client may have {self._most_of_one} {self._kind} open, and this one already has them"
            raise AccessDenied(429, "too-many-requests", cause, remedy, retry_after_s=RETRY_AFTER_S)
        self._by_client[client] += 1
        try:
            yield
        finally:
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]
