"""Who calls, and whether they may: tokens looked up in the database, calls counted."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from core.access import Scope
from records import access
from records.access import Token
from records.storage.database import Database
from server.access.limits import RateLimiter, network_of
from server.settings import ServerSettings

# So long a token that was revoked by another server process may still work here.
CACHE_S = 5.0
NOBODY = "nobody"
TOKEN_PREFIX = "tf_"
_SECRET = re.compile(TOKEN_PREFIX + "[A-Za-z0-9_-]{43}")


@dataclass(frozen=True)
class Caller:
    """`who` is a token's id, "bootstrap" for the token in the settings, "loopback" where none is needed."""

    who: str
    scopes: frozenset[Scope]

    def may(self, needed: Scope) -> bool:
        return needed in self.scopes or Scope.ADMIN in self.scopes


LOOPBACK = Caller("loopback", frozenset({Scope.ADMIN}))
BOOTSTRAP = Caller("bootstrap", frozenset({Scope.ADMIN}))


class AccessDenied(Exception):
    """A call that is not allowed. `status` is HTTP's, `kind` the problem's; the message is the cause without
    a full stop, `remedy` the next step; `retry_after_s` says when trying again makes sense."""

    def __init__(
        self, status: int, kind: str, cause: str, remedy: str, *, who: str = NOBODY, retry_after_s: int = 0
    ) -> None:
        super().__init__(cause)
        self.status, self.kind, self.remedy, self.who = status, kind, remedy, who
        self.retry_after_s = retry_after_s


class Authenticator:
    """What stands between a call and its handler. `now` gives epoch seconds."""

    def __init__(self, settings: ServerSettings, database: Database, now: Callable[[], float]) -> None:
        self._open = settings.open
        self._bootstrap = settings.secret
        self._database = database
        self._now = now
        self._calls = RateLimiter(settings.rate_limit)
        self._failures = RateLimiter(settings.failure_limit)
        self._known: dict[str, tuple[Token, float]] = {}

    async def identify(self, authorization: str | None, address: str) -> Caller:
        """Whose token an Authorization value carries. Raises Refused, StorageError.

        Who tried wrong ones too often has to wait, except with a token that was in use just now.
        """
        if self._open:
            return LOOPBACK
        secret = _bearer(authorization)
        if self._is_bootstrap(secret):
            return BOOTSTRAP
        place = network_of(address)
        token = self._remembered(secret)
        if token is None:
            _refuse_for(await self._failures.reached(place), "too many wrong tokens came from this address")
            token = await self._look_up(secret)
        try:
            return self._judged(secret, token)
        except AccessDenied:
            await self._failures.hit(place)
            raise

    async def count(self, caller: Caller | None, address: str) -> None:
        """Counts a call of a token, or of an address where there is none. Raises Refused."""
        if self._open:
            return
        place = network_of(address)
        # Many share the bootstrap token.
        client = f"{caller.who} {place}" if caller is BOOTSTRAP else caller.who if caller else place
        who = caller.who if caller else NOBODY
        _refuse_for(await self._calls.hit(client), "too many requests came from this client", who)

    def forget(self, token_id: str) -> None:
        """Look this token up again when it is used next."""
        for secret, (token, _) in list(self._known.items()):
            if token.id == token_id:
                self._known.pop(secret, None)

    def _is_bootstrap(self, secret: str | None) -> bool:
        if secret is None or self._bootstrap is None:
            return False
        return hmac.compare_digest(secret.encode("utf-8", "replace"), self._bootstrap.encode())

    def _remembered(self, secret: str | None) -> Token | None:
        token, at = self._known.get(token_digest(secret or ""), (None, 0.0))
        # A clock that was set back must not keep a revoked token alive.
        return token if abs(self._now() - at) < CACHE_S else None

    async def _look_up(self, secret: str | None) -> Token | None:
        if secret is None or not _SECRET.fullmatch(secret):
            return None
        sha, now = token_digest(secret), self._now()
        token = await asyncio.to_thread(self._used, sha, now)
        if token is not None:
            self._known[sha] = token, now
        return token

    def _used(self, sha: str, now: float) -> Token | None:
        with self._database.begin() as session:
            return access.use_token(session, sha, now)

    def _judged(self, secret: str | None, token: Token | None) -> Caller:
        if secret is None:
            remedy = "send the header 'Authorization: Bearer TOKEN'"
            raise AccessDenied(401, "token-needed", "this service needs a token", remedy)
        if token is None:
            remedy = "check it, or ask an administrator for another one"
            raise AccessDenied(401, "token-needed", "this token is not known here", remedy)
        remedy = "ask an administrator for a new one"
        if token.revoked_at is not None:
            raise AccessDenied(401, "token-revoked", "this token was revoked", remedy, who=token.id)
        if token.expired(self._now()):
            raise AccessDenied(401, "token-expired", "this token has expired", remedy, who=token.id)
        return Caller(token.id, token.scopes)


def require_scope(caller: Caller, needed: Scope) -> None:
    """Raises Refused unless the caller has the scope."""
    if not caller.may(needed):
        cause = f"this token lacks the scope {needed}"
        remedy = f"ask an administrator for one with it (`tunefarm token create --scope {needed}`)"
        raise AccessDenied(403, "scope-missing", cause, remedy, who=caller.who)


def token_digest(secret: str) -> str:
    """What is stored of a secret. Its 256 random bits can't be guessed, so a fast digest is enough."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def _bearer(authorization: str | None) -> str | None:
    scheme, _, secret = (authorization or "").partition(" ")
    return (secret.strip() or None) if scheme.lower() == "bearer" else None


def _refuse_for(wait_s: int | None, cause: str, who: str = NOBODY) -> None:
    if wait_s is not None:
        remedy = f"try again in {wait_s} s"
        raise AccessDenied(429, "too-many-requests", cause, remedy, who=who, retry_after_s=wait_s)
