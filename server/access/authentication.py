"""Authentication of callers: tokens looked up in the database, calls counted against rate limits."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from cachetools import TTLCache

from core.tokens import Scope
from records import access
from records.access import Token
from records.storage.database import Database
from server.rate_limits import RateLimiter, network_of
from server.settings import ServerSettings

# Seconds for which a token that another server process has revoked may still work here.
CACHE_S = 5.0
_CACHED_TOKENS = 10_000
NOBODY = "nobody"
TOKEN_PREFIX = "tf_"
_SECRET = re.compile(TOKEN_PREFIX + "[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Caller:
    """The sender of a call. `who` is a token's id; "bootstrap", "worker" or "reader" for tokens of the
    settings; or "loopback" if no token is needed."""

    who: str
    scopes: frozenset[Scope]

    @property
    def token_id(self) -> str | None:
        """The id of the caller's token; None without a token and for the bootstrap token."""
        return None if self in (LOOPBACK, BOOTSTRAP) else self.who

    def may(self, needed: Scope) -> bool:
        return needed in self.scopes or Scope.ADMIN in self.scopes


LOOPBACK = Caller("loopback", frozenset({Scope.ADMIN}))
BOOTSTRAP = Caller("bootstrap", frozenset({Scope.ADMIN}))
WORKER = Caller("worker", frozenset({Scope.WORKER}))
READER = Caller("reader", frozenset({Scope.READ}))


class AccessDenied(Exception):
    """The call is not allowed.

    `status` is the HTTP status, `kind` the kind of problem. The message is the cause without a full stop,
    `remedy` the next step. After `retry_after_s` seconds, the same call may be allowed.
    """

    def __init__(
        self, status: int, kind: str, cause: str, remedy: str, *, who: str = NOBODY, retry_after_s: int = 0
    ) -> None:
        super().__init__(cause)
        self.status, self.kind, self.remedy, self.who = status, kind, remedy, who
        self.retry_after_s = retry_after_s


class Authenticator:
    """Authenticates callers and counts calls. Belongs to the event loop. `now` returns epoch seconds."""

    def __init__(self, settings: ServerSettings, database: Database, now: Callable[[], float]) -> None:
        self._open = settings.open
        # The tokens of the settings.
        given = (settings.token, BOOTSTRAP), (settings.worker_token, WORKER), (settings.read_token, READER)
        self._callers = [(token.get_secret_value(), caller) for token, caller in given if token is not None]
        self._database = database
        self._now = now
        self._calls = RateLimiter(settings.rate_limit)
        self._failures = RateLimiter(settings.failure_limit)
        # Tokens by digest, with the time of a monotonic timer. The system's clock may be set back, which
        # would keep a revoked token valid.
        self._tokens: TTLCache[str, Token] = TTLCache(_CACHED_TOKENS, CACHE_S, timer=time.monotonic)
        self._valid_digests: frozenset[str] = frozenset()
        self._digests_read_at = -math.inf
        self._reading_digests = asyncio.Lock()

    async def authenticate(self, authorization: str | None, address: str) -> Caller:
        """Return the caller whose token an Authorization header carries. Raises AccessDenied, StorageError.

        An address that sent too many wrong tokens must wait before it sends another one. Valid tokens are
        still accepted, because they may belong to another user behind the same address.
        """
        if self._open:
            return LOOPBACK
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip() if scheme.lower() == "bearer" else ""
        given = secret.encode("utf-8", "replace")
        for secret_of_settings, caller in self._callers:
            if given and secret_of_settings and hmac.compare_digest(given, secret_of_settings.encode()):
                return caller
        network, sha = network_of(address), token_digest(secret)
        token = self._tokens.get(sha)
        if token is None:
            wait_s = self._failures.test(network)
            if wait_s is not None and not await self._is_valid(sha):
                raise _too_many("too many wrong tokens came from this address", wait_s)
            if _SECRET.fullmatch(secret):
                token = await asyncio.to_thread(self._look_up, sha)
            if token is not None:
                self._tokens[sha] = token
        try:
            return self._valid_caller(secret, token)
        except AccessDenied:
            self._failures.hit(network)
            raise

    def client_of(self, caller: Caller | None, address: str) -> str | None:
        """Return the client that calls are counted for: a token or an address; None if they aren't
        counted."""
        if self._open:
            return None
        network = network_of(address)
        if caller is None:
            return network
        # Several clients share the tokens of the settings.
        return f"{caller.who} {network}" if caller in (BOOTSTRAP, WORKER, READER) else caller.who

    def count_call(self, caller: Caller | None, address: str) -> None:
        """Count a call of a client. Raises AccessDenied."""
        client = self.client_of(caller, address)
        wait_s = None if client is None else self._calls.hit(client)
        if wait_s is not None:
            who = NOBODY if caller is None else caller.who
            raise _too_many("too many requests came from this client", wait_s, who)

    def forget(self, token_id: str) -> None:
        """Delete a token from the cache: its next use looks it up again."""
        for sha, token in list(self._tokens.items()):
            if token.id == token_id:
                self._tokens.pop(sha, None)

    async def _is_valid(self, sha: str) -> bool:
        """Return whether a token with this digest is valid. One query in CACHE_S seconds reads all valid
        digests."""
        async with self._reading_digests:
            if time.monotonic() - self._digests_read_at >= CACHE_S:
                self._valid_digests = await asyncio.to_thread(self._read_valid_digests)
                self._digests_read_at = time.monotonic()
        return sha in self._valid_digests

    def _read_valid_digests(self) -> frozenset[str]:
        with self._database.begin() as session:
            return access.valid_digests(session, self._now())

    def _look_up(self, sha: str) -> Token | None:
        with self._database.begin() as session:
            return access.use_token(session, sha, self._now())

    def _valid_caller(self, secret: str, token: Token | None) -> Caller:
        """Return the caller of a valid token. Raises AccessDenied."""
        if not secret:
            remedy = "send the header 'Authorization: Bearer TOKEN'"
            raise AccessDenied(401, "token-needed", "this service needs a token", remedy)
        if token is None:
            remedy = "check it, or ask an administrator for another one"
            raise AccessDenied(401, "token-needed", "this service doesn't know the token", remedy)
        remedy = "ask an administrator for a new one"
        if token.revoked_at is not None:
            raise AccessDenied(401, "token-revoked", "this token was revoked", remedy, who=token.id)
        if token.expired(self._now()):
            raise AccessDenied(401, "token-expired", "this token has expired", remedy, who=token.id)
        return Caller(token.id, token.scopes)


def require_scope(caller: Caller, needed: Scope) -> None:
    """Raise AccessDenied unless the caller has the scope."""
    if not caller.may(needed):
        cause = f"this token lacks the scope {needed}"
        remedy = f"ask an administrator for one with it (`tunefarm token create --scope {needed}`)"
        raise AccessDenied(403, "scope-missing", cause, remedy, who=caller.who)


def token_digest(secret: str) -> str:
    """Return a secret's digest to store. Secrets have 256 random bits, so a fast digest is enough."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _too_many(cause: str, wait_s: int, who: str = NOBODY) -> AccessDenied:
    remedy = f"try again in {wait_s} s"
    return AccessDenied(429, "too-many-requests", cause, remedy, who=who, retry_after_s=wait_s)
