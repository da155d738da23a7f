"""`/v1/session`: the caller's token, and the cookie that keeps it in a browser.

The cookie holds the token itself. So a session ends at once when its token is revoked, and server processes
share no sessions. Scripts can't read it, and it ends with the browser.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from core.tokens import Scope
from server.access.authentication import Caller
from server.access.cookie import forget_credentials, keep_credentials

router = APIRouter(prefix="/v1/session", tags=["access"])


class SessionBody(BaseModel):
    """The caller: `who` is a token's id, "bootstrap", or "loopback" where no token is needed."""

    who: str
    scopes: list[Scope]

    @classmethod
    def of(cls, request: Request) -> SessionBody:
        caller: Caller = request.state.caller
        return cls(who=caller.who, scopes=sorted(caller.scopes))


@router.get("")
async def show_session(request: Request) -> SessionBody:
    """Return the caller's identity and scopes."""
    return SessionBody.of(request)


@router.post("")
async def sign_in(request: Request, response: Response) -> SessionBody:
    """Keep the token of the Authorization header in a cookie for the dashboard's pages."""
    authorization = request.headers.get("authorization")
    if authorization is not None:
        keep_credentials(response, authorization, secure=request.url.scheme == "https")
    return SessionBody.of(request)


@router.delete("", status_code=204)
async def sign_out(response: Response) -> None:
    """Delete the cookie."""
    forget_credentials(response)
