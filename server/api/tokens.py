"""`/v1/tokens` and `/v1/audit`: tokens with their scopes, and the audit log."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, FailFast, Field
from starlette.concurrency import run_in_threadpool

from core.tokens import DEFAULT_LIFETIME_S, Scope
from records import access
from records.access import AuditLine, Token
from server.access.authentication import TOKEN_PREFIX, token_digest
from server.api.fields import Name, RequestBody
from server.api.ids import TokenId
from server.context import ContextDep
from server.problems import problems

router = APIRouter(prefix="/v1", tags=["access"])

_CENTURY_S = 36525 * 86400.0
# NaN passes every comparison, so it is refused explicitly.
Lifetime = Annotated[float, Field(gt=0, le=_CENTURY_S, allow_inf_nan=False)]


class TokenRequestBody(RequestBody):
    """A token to create. If `expires_after_s` is null, it is valid until it is revoked; by default, for 90
    days."""

    model_config = ConfigDict(strict=False)  # JSON has the scope's name

    name: Name
    scopes: Annotated[list[Scope], FailFast()] = Field(min_length=1, max_length=len(Scope))
    expires_after_s: Lifetime | None = DEFAULT_LIFETIME_S


class TokenBody(BaseModel):
    """A token without its secret. Times are epoch seconds; `last_used_at` is exact to ten minutes."""

    id: str
    name: str
    scopes: list[Scope]
    state: Literal["active", "expired", "revoked"]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    last_used_at: float | None


class NewTokenBody(TokenBody):
    """A new token. `token` is its secret, which is shown only once, because the service stores its digest."""

    token: str


class TokensBody(BaseModel):
    """Tokens, newest first."""

    items: list[TokenBody]


class AuditLineBody(BaseModel):
    """An action that a caller did, or that was refused, `times` times. `who` is a token's id, "bootstrap",
    "loopback" or "nobody". Equal refusals are counted in one line a minute, allowed calls of one worker token
    in one line a day."""

    id: str
    at: float
    who: str
    action: str
    subject: str
    outcome: str
    address: str
    times: int

    @classmethod
    def of(cls, line: AuditLine) -> AuditLineBody:
        return cls(id=str(line.id), at=line.at, times=line.times, **vars(line.entry))


class AuditBody(BaseModel):
    """Audit lines, newest first. `next` is the `before` of the next page, null on the last one."""

    items: list[AuditLineBody]
    next: str | None


@router.post("/tokens", status_code=201, responses=problems(400))
def create_token(body: TokenRequestBody, request: Request, context: ContextDep) -> NewTokenBody:
    """Create a token. Only this response shows its secret."""
    now = context.now()
    expires_at = None if body.expires_after_s is None else now + body.expires_after_s
    token = Token(context.new_id(), body.name, frozenset(body.scopes), now, expires_at)
    secret = TOKEN_PREFIX + context.new_secret()
    with context.database.begin() as session:
        access.add_token(session, token, token_digest(secret))
    request.state.audited = token.id
    return NewTokenBody.model_validate(_fields(token, now) | {"token": secret})


@router.get("/tokens")
def list_tokens(context: ContextDep) -> TokensBody:
    """Return all tokens, also revoked and expired ones, without their secrets."""
    with context.database.begin() as session:
        found = access.tokens(session)
    return TokensBody(items=[TokenBody.model_validate(_fields(token, context.now())) for token in found])


@router.delete("/tokens/{token_id}", responses=problems(404))
async def revoke_token(token_id: TokenId, context: ContextDep) -> TokenBody:
    """Revoke a token. Other server processes notice within five seconds."""
    now = context.now()

    def revoke() -> Token:
        with context.database.begin() as session:
            return access.revoke_token(session, token_id, now)

    token = await run_in_threadpool(revoke)
    context.authenticator.forget(token_id)
    return TokenBody.model_validate(_fields(token, now))


@router.get("/audit")
async def show_audit(
    context: ContextDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description="the `next` of the page before")] = None,
) -> AuditBody:
    """Return the changes and the refusals, newest first."""
    await context.audit.flush()
    found = await run_in_threadpool(context.audit.page, limit + 1, before)
    page = found[:limit]
    return AuditBody(
        items=[AuditLineBody.of(line) for line in page], next=str(page[-1].id) if found[limit:] else None
    )


def _fields(token: Token, now: float) -> dict[str, object]:
    state = "revoked" if token.revoked_at is not None else "expired" if token.expired(now) else "active"
    return {**vars(token), "scopes": sorted(token.scopes), "state": state}
