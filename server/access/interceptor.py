"""The gRPC interceptor that checks the token and scope of every call of a worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from records.access import AuditEntry
from records.storage.database import StorageError
from server.access.audit import AuditLog
from server.access.authentication import AccessDenied, Authenticator, Caller, require_scope
from server.access.scopes import procedure_scope

# The caller of the call that is being handled.
current_caller: ContextVar[Caller] = ContextVar("current_caller")
# Calls that upload files of tens of megabytes.
MAX_UPLOADS = 16
# Seconds in which a call's message must arrive. A slow call would keep others waiting.
MESSAGE_S = 60.0
# grpc's own types for these differ between releases.
_Continuation = Callable[[Any], Awaitable[Any]]

_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Accepts a call if its token has the needed scope. Messages of rejected calls are never received.

    The handler finds the caller in `current_caller`.

    Calls are handled as streams of requests, because gRPC would otherwise receive the message before it calls
    the handler. At most MAX_UPLOADS libraries are received at a time; others wait.
    """

    def __init__(self, authenticator: Authenticator, audit: AuditLog) -> None:
        self._authenticator = authenticator
        self._audit = audit
        self._uploads = asyncio.Semaphore(MAX_UPLOADS)

    async def intercept_service(self, continuation: _Continuation, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return None
        metadata = dict(handler_call_details.invocation_metadata or ())
        authorization = str(metadata.get("authorization", ""))
        method = str(handler_call_details.method)
        turn = self._uploads if method.endswith("/PutLibrary") else contextlib.nullcontext()

        async def unary(_requests: Any, context: Any) -> Any:
            await self._check_access(method, authorization, context)
            async with turn:
                return await handler.unary_unary(await _receive(handler, context), context)

        async def stream(_requests: Any, context: Any) -> AsyncIterator[Any]:
            await self._check_access(method, authorization, context)
            async for answer in handler.unary_stream(await _receive(handler, context), context):
                yield answer

        serializer = handler.response_serializer
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=serializer)
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=serializer)

    async def _check_access(self, method: str, authorization: str, context: Any) -> None:
        """End the call with a status if it isn't allowed. Write it to the audit log in any case."""
        address = peer_address(context.peer())
        name = method.rpartition(".")[2]
        try:
            caller = await self._authenticator.authenticate(authorization, address)
            require_scope(caller, procedure_scope(method))
        except AccessDenied as denied:
            code = _CODES[denied.status]
            self._audit.count_refused(AuditEntry(denied.who, name, "", f"{code.name} {denied.kind}", address))
            await context.abort(code, str(denied))
        except StorageError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the service can't use its storage: {error}")
        else:
            current_caller.set(caller)
            await self._audit.write_daily(AuditEntry(caller.who, name, "", "OK", address))


def peer_address(peer: str) -> str:
    """Return the address in a gRPC peer such as "ipv4:10.0.0.7:4711" or "ipv6:%5B::1%5D:4711"."""
    _, _, place = unquote(peer).partition(":")
    return place.rpartition(":")[0].strip("[]") or "unknown"


async def _receive(handler: Any, context: Any) -> Any:
    """Receive and parse the call's message, or end the call with a status."""
    try:
        async with asyncio.timeout(MESSAGE_S):
            data = await context.read()
    except TimeoutError:
        late = f"the message took longer than {MESSAGE_S:g} s: send it again over a better connection"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, late)
    if data is grpc.aio.EOF:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message")
    try:
        return handler.request_deserializer(data)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message can't be parsed: {error}")
