"""The objects that all request handlers share. There is one context for each process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, cast

from cachetools import LRUCache
from fastapi import Depends, Request

from records.storage.database import Database
from server.access.audit import AuditLog
from server.access.authentication import Authenticator
from server.event_feed import EventFeed
from server.look_ups import LookUps
from server.metrics import ServerMetrics
from server.settings import ServerSettings
from server.threads import Threads
from system.signing import SigningKey, read_key
from system.version import installed_version


@dataclass(frozen=True)
class ServerContext:
    """Settings, database and services of one server process.

    `wake` asks the scheduler to run a step of a job soon. It is called after the transaction. `now` returns
    epoch seconds, `new_id` a unique id, `new_secret` 43 random characters. Handlers that wait return when
    `stopping` is set. `transfers` are the threads that move files. Only the holder of `importing` has an
    import in memory. `version` is tunefarm's version. `bundle_digests` keeps the SHA-256 of bundles by the
    SHA-256 of their artifacts.
    """

    settings: ServerSettings
    database: Database
    wake: Callable[[str, str], None]
    now: Callable[[], float]
    new_id: Callable[[], str]
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    new_secret: Callable[[], str] = secrets.token_urlsafe
    transfers: Threads = field(default_factory=Threads)
    importing: asyncio.Lock = field(default_factory=asyncio.Lock)
    version: str = field(default_factory=installed_version)
    bundle_digests: LRUCache[str, bytes] = field(default_factory=lambda: LRUCache(1000))

    @cached_property
    def authenticator(self) -> Authenticator:
        return Authenticator(self.settings, self.database, self.now)

    @cached_property
    def signing_key(self) -> SigningKey | None:
        """The key that signs artifacts and bundles; None if they aren't signed. Raises SettingsError."""
        file = self.settings.signing_key
        return None if file is None else read_key(file)

    @cached_property
    def look_ups(self) -> LookUps:
        return LookUps(self.database)

    @cached_property
    def audit(self) -> AuditLog:
        return AuditLog(self.database, self.now)

    @cached_property
    def event_feed(self) -> EventFeed:
        return EventFeed(self.database, self.stopping)


# FastAPI would call a plain function in a thread.
async def _context_of(request: Request) -> ServerContext:
    return cast(ServerContext, request.app.state.context)


ContextDep = Annotated[ServerContext, Depends(_context_of)]
