"""The protocols of each connection, with bounds on TLS handshakes and heads that uvicorn doesn't have."""

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

# A client sends the head of a request at once.
HEAD_S = 10.0
MAX_HEAD_BYTES = 64 << 10
# The process may have too many open files.
ACCEPT_AGAIN_S = 1.0
# Connections without a whole TLS handshake or head; the one that has waited longest makes room for one more.
MAX_HALF_SENT = 1000

_log = logging.getLogger(__name__)


class HalfSent(Protocol):
    """A connection whose handshake or head isn't whole."""

    def make_room(self) -> None:
        """End the connection."""


# The half-sent requests of this process, oldest first: a dict keeps its order.
half_sent: dict[HalfSent, None] = {}


def _count(connection: HalfSent) -> None:
    half_sent[connection] = None
    if len(half_sent) > MAX_HALF_SENT:
        next(iter(half_sent)).make_room()


class TlsListener:
    """Accepts the connections of a socket, and gives each to a new protocol once its TLS handshake is done.

    A server of asyncio does so too, but without a bound on the number of handshakes.
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
        """Accept no more connections, and end those whose handshake isn't done."""
        self._accepting.cancel()
        for handshake in list(self._handshakes):
            handshake.make_room()

    async def wait_closed(self) -> None:
        """Wait until `close` has ended everything."""
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
    """Ends a connection whose request has no whole head after HEAD_S, or within MAX_HEAD_BYTES.

    Connections that wait for their next request are uvicorn's: it closes them after a few seconds.
    """

    _in_head = _in_body = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_in_head = self._in_head
        super().data_received(data)
        if self.transport.is_closing() or self._in_body:
            return
        if was_in_head and self._in_head:
            self._head_bytes += len(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._head_bytes > MAX_HEAD_BYTES:
            detail = f"A request's head has at most {MAX_HEAD_BYTES} bytes: send fewer or shorter headers."
            self._end("431 Request Header Fields Too Large", detail)
        elif self._head_timer is None and not is_answering:
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._forget_head()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()

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
        """Answer with a status, and close the connection."""
        self._forget_head()
        if self.transport.is_closing():
            return
        body = f"{detail}\n".encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.transport.close()
