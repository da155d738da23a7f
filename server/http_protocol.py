"""HTTP connections with bounds on TLS handshakes and request heads, which uvicorn lacks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Seconds in which a request's head must arrive. Clients send it at once.
HEAD_S = 10.0
MAX_HEAD_BYTES = 64 << 10
# Seconds before the next connection is accepted after a failure, such as too many open files.
ACCEPT_AGAIN_S = 1.0
# The most connections with an incomplete TLS handshake or head. The oldest is closed to make room for
# another.
MAX_HALF_SENT = 1000

_TOO_LARGE = "431 Request Header Fields Too Large"
_ADVICE = f"A request's head has at most {MAX_HEAD_BYTES} bytes: send fewer or shorter headers."

_log = logging.getLogger(__name__)


class HalfSent(Protocol):
    """A connection whose handshake or head isn't complete."""

    def make_room(self) -> None:
        """Close the connection."""


# The half-sent requests of this process, oldest first, as the keys of a dict.
half_sent: dict[HalfSent, None] = {}


def _count(connection: HalfSent) -> None:
    half_sent[connection] = None
    if len(half_sent) > MAX_HALF_SENT:
        next(iter(half_sent)).make_room()


class TlsListener:
    """Accepts the connections of a socket, and gives each to a new protocol once its TLS handshake is done.

    asyncio's server does the same without a bound on the number of handshakes.
    """

    def __init__(
        self, listening: socket.socket, tls: ssl.SSLContext, new_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._tls = tls
        self._new_protocol = new_protocol
        self._handshakes: set[_Handshake] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and close those whose handshake isn't done."""
        self._accepting.cancel()
        for handshake in list(self._handshakes):
            handshake.make_room()

    async def wait_closed(self) -> None:
        """Wait until `close` has closed all connections."""
        await asyncio.wait([self._accepting, *(handshake.task for handshake in self._handshakes)])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                _log.error("no connection can be accepted: %s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            handshake = _Handshake(connection, self._tls, self._new_protocol)
            self._handshakes.add(handshake)
            handshake.task.add_done_callback(partial(self._forget, handshake))

    def _forget(self, handshake: _Handshake, _task: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)


class _Handshake:
    def __init__(
        self, connection: socket.socket, tls: ssl.SSLContext, new_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        self._connection = connection
        self._has_begun = False
        self.task = asyncio.get_running_loop().create_task(self._finish(tls, new_protocol))
        _count(self)

    def make_room(self) -> None:
        half_sent.pop(self, None)
        self.task.cancel()
        if not self._has_begun:
            self._connection.close()

    async def _finish(self, tls: ssl.SSLContext, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._has_begun = True
        # ssl.SSLError and TimeoutError are OSErrors. The transport closes the connection.
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.get_running_loop().connect_accepted_socket(
                new_protocol, self._connection, ssl=tls, ssl_handshake_timeout=HEAD_S
            )
        half_sent.pop(self, None)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection if a request's head isn't complete after HEAD_S, or exceeds MAX_HEAD_BYTES.

    The same limits apply to the rest of a body that was answered early, and to a chunked body's framing:
    lengths, extensions and trailers. uvicorn closes idle connections after a few seconds.
    """

    _in_head = _in_body = _has_body = _is_too_large = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head, was_in_body, self._has_body = self._in_head, self._in_body, False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if (was_in_head and self._in_head) or (was_in_body and self._in_body):
            self._head_bytes = 0 if self._has_body else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._end(_TOO_LARGE, _ADVICE)
        elif self._head_timer is None and not self._in_body and not self._is_answering:
            self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that can't be parsed, or whose head is too large."""
        if self._is_too_large:
            self._end(_TOO_LARGE, _ADVICE)
        else:
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_body:  # trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        # A large head may arrive in one piece.
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._is_too_large = True
            raise ValueError("the head is too large")  # stops the parser
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._forget_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._forget_head()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        # Otherwise the body belongs to a pipelined request.
        if self._in_body and not self._is_answering:
            self._await_head()
        super().on_response_complete()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._on_late_head)
        _count(self)

    def make_room(self) -> None:
        self._end("503 Service Unavailable", "Too many requests are half sent: send this one again.")

    def _forget_head(self) -> None:
        half_sent.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_late_head(self) -> None:
        self._end("408 Request Timeout", f"The request's head took longer than {HEAD_S:g} s: send it again.")

    def _end(self, status: str, detail: str) -> None:
        """Answer with a status, unless the request is answered already, and close the connection."""
        self._forget_head()
        if self.transport.is_closing():
            return
        if self._in_body:
            self.transport.close()
            return
        body = f"{detail}\n".encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.transport.close()
