"""`/v1/tokens` and `/v1/audit`: who may do what, and who did what."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from core.access import Scope
from records import access
from records.access import AuditLine, Token
from server.access.authentication import TOKEN_PREFIX, token_digest
from server.api.problems import problems
from server.api.schemas import Name
from server.context import ContextDep

router = APIRouter(prefix="/v1", tags=["access"])

_CENTURY_S = 36525 * 86400.0
# Without the last, NaN would pass: it is not more than anything.
Lifetime = Annotated[float, Field(gt=0, le=_CENTURY_S, allow_inf_nan=False)]


class TokenRequestBody(BaseModel):
    """`expires_after_s` null: until it is revoked."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    expires_after_s: Lifetime | None = None


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
    """`token` is the secret. It is told this once: only its digest is stored."""

    token: str


class TokensBody(BaseModel):
    """Newest first."""

    items: list[TokenBody]


class AuditLineBody(BaseModel):
    """`who` is a token's id, "bootstrap", "loopback" or "nobody". A line stands for as many `times` as the
    same was refused in a minute; calls of workers that are allowed have a line a day."""

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
        return cls(id=str(line.id), at=line.at, times=line.times, **vars(line.act))


class AuditBody(BaseModel):
    """Newest first. `next` is the `before` of the next page, null on the last one."""

    items: list[AuditLineBody]
    next: str | None


@router.post("/tokens", status_code=201, responses=problems(400))
def create_token(body: TokenRequestBody, request: Request, context: ContextDep) -> NewTokenBody:
    """Makes a token. This answer is the only place where its secret ever stands."""
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
    """Every token ever made, without its secret."""
    with context.database.begin() as session:
        known = access.tokens(session)
    return TokensBody(items=[TokenBody.model_validate(_fields(token, context.now())) for token in known])


@router.delete("/tokens/{token_id}", responses=problems(404))
def revoke_token(token_id: str, context: ContextDep) -> TokenBody:
    """Revokes a token, for good. Other server processes notice within five seconds."""
    with context.database.begin() as session:
        token = access.revoke_token(session, token_id, context.now())
    context.authenticator.forget(token_id)
    return TokenBody.model_validate(_fields(token, context.now()))


@router.get("/audit")
async def show_audit(
    context: ContextDep,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description="the `next` of the page before")] = None,
) -> AuditBody:
    """What was changed and what was refused, newest first."""
    await context.audit.flush()
    found = await asyncio.to_thread(context.audit.page, limit + 1, before)
    page = found[:limit]
    return AuditBody(
        items=[AuditLineBody.of(line) for line in page], next=str(page[-1].id) if found[limit:] else None
    )


def _fields(token: Token, now: float) -> dict[str, object]:
    state = "revoked" if token.revoked_at is not None else "expired" if token.expired(now) else "active"
    return {**vars(token), "scopes": sorted(token.scopes), "state": state}
