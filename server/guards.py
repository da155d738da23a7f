"""What stands before every call: the token, and the size of a request's body."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.problems import Problem

# Probes carry no token, and tell nothing but "up".
_OPEN_PATHS = {"/healthz", "/readyz"}


# grpc's own types for these differ between its releases.
_Continuation = Callable[[Any], Awaitable[Any]]


class RequireToken:
    """ASGI middleware: lets only requests with the right bearer token through."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("authorization") if scope["type"] == "http" else None
        if scope["type"] == "lifespan" or scope["path"] in _OPEN_PATHS or carries_token(given, self._token):
            await self._app(scope, receive, send)
            return
        detail = "This service needs its token: send the header 'Authorization: Bearer TOKEN'."
        challenge = {"WWW-Authenticate": "Bearer"}
        await Problem(401, "token-needed", detail, headers=challenge).response()(scope, receive, send)


class LimitBody:
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


class RequireTokenOfWorkers(grpc.aio.ServerInterceptor):
    """Refuses gRPC calls without the right token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def intercept_service(self, continuation: _Continuation, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata or ())
        if handler is None or carries_token(metadata.get("authorization"), self._token):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_refuse_stream)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def carries_token(authorization: str | None, token: str) -> bool:
    """Whether an Authorization value is this bearer token, compared in constant time."""
    scheme, _, given = (authorization or "").partition(" ")
    same = hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())
    return same and scheme.lower() == "bearer"


def _too_large(most: int) -> Problem:
    return Problem(413, "body-too-large", f"The request's body is larger than the {most} bytes allowed here.")


_REFUSAL = "this service needs its token: start the worker with --token"


async def _refuse(_request: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)


async def _refuse_stream(_request: object, context: Any) -> AsyncIterator[None]:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
    yield
