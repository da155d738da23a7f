"""ASGI middleware that checks every HTTP request's token, scope, rate and size of body."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from records.access import AuditEntry
from records.storage.database import StorageError
from server.access.audit import AuditLog
from server.access.authentication import LOOPBACK, AccessDenied, Authenticator, Caller, require_scope
from server.access.cookie import credentials_of, is_own_origin
from server.access.open_calls import OpenCalls
from server.access.scopes import Operation, is_open, operation_of
from server.problems import Problem, storage_problem
from system.ip_addresses import is_loopback

# Seconds in which a request's body must arrive, except for uploads.
BODY_S = 60.0
# A name, an IPv4 address or an IPv6 address in brackets, with an optional port.
_HOST = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?", re.ASCII)


class AccessMiddleware:
    """Accepts a request if its token has the needed scope, and writes the audit log.

    A handler finds the caller in `request.state.caller`, and may name the object that it changed in
    `request.state.audited`. Only HTTP requests are handled. `open_calls` bounds the routes whose calls stay
    open for long.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        audit: AuditLog,
        open_calls: Mapping[str, OpenCalls],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._audit = audit
        self._open_calls = open_calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        with ExitStack() as while_open:
            await self._handle(scope, receive, send, while_open)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, while_open: ExitStack) -> None:
        operation, address = operation_of(scope["method"], scope["path"]), client_address(scope)
        try:
            caller = await self._check_access(scope, operation, address)
            if caller is not None and operation.route in self._open_calls:
                client = self._authenticator.client_of(caller, address)
                while_open.enter_context(self._open_calls[operation.route].counted(client))
        except AccessDenied as denied:
            outcome = f"{denied.status} {denied.kind}"
            self._audit.count_refused(AuditEntry(denied.who, operation.route, "", outcome, address))
            await problem_of(denied).response()(scope, receive, send)
            return
        except StorageError as error:
            await storage_problem(error).response()(scope, receive, send)
            return

        async def audit_and_send(message: Message) -> None:
            # The line is written before the response begins, so a client that has the response finds the
            # line.
            if message["type"] == "http.response.start" and caller is not None and operation.is_write:
                subject = str(scope.get("state", {}).get("audited", operation.subject))
                status = str(message["status"])
                await self._audit.write(AuditEntry(caller.who, operation.route, subject, status, address))
            await send(message)

        await self._app(scope, receive, audit_and_send)

    async def _check_access(self, scope: Scope, operation: Operation, address: str) -> Caller | None:
        """Return the caller; None if the route needs no token. Raises AccessDenied, StorageError."""
        if is_open(scope["path"]):
            self._authenticator.count_call(None, address)
            return None
        headers = Headers(scope=scope)
        caller = await self._authenticator.authenticate(credentials_of(scope["method"], headers), address)
        if caller is LOOPBACK:
            _require_local(headers)
        self._authenticator.count_call(caller, address)
        if operation.scope is not None:
            require_scope(caller, operation.scope)
        scope.setdefault("state", {})["caller"] = caller
        return caller


class BodySizeMiddleware:
    """Rejects bodies longer than `max_bytes(path)`, and bodies that take too long. The routes in `uploads`
    limit the time themselves."""

    def __init__(self, app: ASGIApp, max_bytes: Callable[[str], int], uploads: Collection[str]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._max_bytes(scope["path"])
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > most:
            await _too_large(most).response()(scope, receive, send)
            return
        received, is_whole = 0, scope["path"] in self._uploads
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BODY_S

        async def receive_counted() -> Message:
            nonlocal received, is_whole
            try:
                # After the body, a handler may wait without a limit for the client to disconnect.
                async with asyncio.timeout_at(None if is_whole else deadline):
                    message = await receive()
            except TimeoutError as error:
                detail = f"The body took longer than {BODY_S:g} s: send it again over a better connection."
                raise Problem(408, "body-too-slow", detail) from error
            is_whole = is_whole or not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > most:
                raise _too_large(most)
            return message

        await self._app(scope, receive_counted, send)


def _too_large(most: int) -> Problem:
    return Problem(413, "body-too-large", f"The request's body is larger than the {most} bytes allowed here.")


def problem_of(denied: AccessDenied) -> Problem:
    """Return the problem document of a refusal, with the headers of its status."""
    cause = str(denied)
    detail = f"{cause[:1].upper()}{cause[1:]}: {denied.remedy}."
    if denied.retry_after_s:
        headers = {"Retry-After": str(denied.retry_after_s)}
    else:
        headers = {"WWW-Authenticate": _CHALLENGES.get(denied.kind, "Bearer")}
    return Problem(denied.status, denied.kind, detail, headers=headers)


_CHALLENGES = {
    "token-expired": 'Bearer error="invalid_token"',
    "token-revoked": 'Bearer error="invalid_token"',
    "scope-missing": 'Bearer error="insufficient_scope"',
}


def client_address(scope: Scope) -> str:
    """Return the client's address, from uvicorn or from a proxy on this machine."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def _require_local(headers: Headers) -> None:
    """Raise AccessDenied for a browser's request from a page of another origin. Another port is another
    origin.
    """
    hosts, origin = headers.getlist("host"), headers.get("origin")
    host = hosts[0] if len(hosts) == 1 else ""
    named = _HOST.fullmatch(host)
    is_local = named is not None and is_loopback(named[1].lower().strip("[]"))
    if not is_local or (origin is not None and not is_own_origin(origin, host)):
        cause = "without tokens, this service accepts requests only from its own machine"
        remedy = "call it as 127.0.0.1 or localhost, or set TUNEFARM_TOKEN"
        raise AccessDenied(403, "not-from-here", cause, remedy)
