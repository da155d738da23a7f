"""What stands before every HTTP request: the token, its scope, the rate, and the size of the body."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from records.access import Act
from records.storage.database import StorageError
from server.access.audit import AuditLog
from server.access.authentication import LOOPBACK, AccessDenied, Authenticator, Caller, require_scope
from server.access.scopes import OPEN_PATHS, Operation, operation_of
from server.api.problems import Problem, storage_problem
from system.network import is_loopback


class AccessMiddleware:
    """ASGI middleware: lets a request through when its token has the scope for it, and keeps the audit log.

    A handler may name what it changed in `request.state.audited`. Anything but HTTP is not answered.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, audit: AuditLog) -> None:
        self._app = app
        self._authenticator = authenticator
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._guarded(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        need = operation_of(scope["method"], scope["path"])
        try:
            caller = await self._admit(scope, need)
        except AccessDenied as refused:
            act = Act(refused.who, need.route, "", f"{refused.status} {refused.kind}", client_address(scope))
            self._audit.refused(act)
            await problem_of(refused).response()(scope, receive, send)
        except StorageError as error:
            await storage_problem(error).response()(scope, receive, send)
        else:
            audited = self._audited(scope, need, caller, send) if caller and need.changes else send
            await self._app(scope, receive, audited)

    async def _admit(self, scope: Scope, need: Operation) -> Caller | None:
        """None for a probe, which nobody has to be anybody for. Raises Refused, StorageError."""
        address = client_address(scope)
        if scope["path"] in OPEN_PATHS:
            await self._authenticator.count(None, address)
            return None
        headers = Headers(scope=scope)
        caller = await self._authenticator.identify(headers.get("authorization"), address)
        if caller is LOOPBACK:
            _require_local(headers)
        await self._authenticator.count(caller, address)
        require_scope(caller, need.scope)
        return caller

    def _audited(self, scope: Scope, need: Operation, caller: Caller, send: Send) -> Send:
        """Writes the line before the answer begins: who has the answer finds the line."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                subject = str(scope.get("state", {}).get("audited", need.subject))
                status = str(message["status"])
                await self._audit.write(Act(caller.who, need.route, subject, status, client_address(scope)))
            await send(message)

        return noted


class BodySizeMiddleware:
    """ASGI middleware: refuses bodies longer than `max_bytes(path)`, announced or not."""

    def __init__(self, app: ASGIApp, max_bytes: Callable[[str], int]) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._max_bytes(scope["path"])
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > most:
            await _too_large(most).response()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                raise _too_large(most)
            return message

        await self._app(scope, counted, send)


def problem_of(refused: AccessDenied) -> Problem:
    """The problem document of a refusal, with the headers that belong to its status."""
    cause = str(refused)
    detail = f"{cause[:1].upper()}{cause[1:]}: {refused.remedy}."
    if refused.status == 429:
        headers = {"Retry-After": str(refused.retry_after_s)}
    else:
        headers = {"WWW-Authenticate": _CHALLENGES.get(refused.kind, "Bearer")}
    return Problem(refused.status, refused.kind, detail, headers=headers)


_CHALLENGES = {
    "token-expired": 'Bearer error="invalid_token"',
    "token-revoked": 'Bearer error="invalid_token"',
    "scope-missing": 'Bearer error="insufficient_scope"',
}


def _require_local(headers: Headers) -> None:
    """A web page from elsewhere makes its visitor's browser call this machine. Raises Refused."""
    origin = headers.get("origin")
    called_as = [f"//{headers.get('host', '')}", *([] if origin is None else [origin])]
    if not all(map(_is_local, called_as)):
        cause = "without a token this service answers only programs on its own machine"
        remedy = "call it as 127.0.0.1 or localhost, or set TUNEFARM_TOKEN"
        raise AccessDenied(403, "not-from-here", cause, remedy)


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def client_address(scope: Scope) -> str:
    """The client's, as uvicorn (or the proxy on this machine that it trusts) says."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _too_large(most: int) -> Problem:
    return Problem(413, "body-too-large", f"The request's body is larger than the {most} bytes allowed here.")
