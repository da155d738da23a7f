"""The HTTP protocol of each connection, with bounds on a request's head that uvicorn doesn't have."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# A client sends the head of a request at once.
HEAD_S = 10.0
MAX_HEAD_BYTES = 64 << 10
# Connections without a whole head; the one that has waited longest makes room for one more.
MAX_HALF_SENT = 1000


class BoundedHttpProtocol(HttpToolsProtocol):
    """Ends a connection whose request has no whole head after HEAD_S, or within MAX_HEAD_BYTES.

    Connections that wait for their next request are uvicorn's: it closes them after a few seconds.
    """

    # Of this process, oldest first: a dict keeps its order.
    _half_sent: ClassVar[dict[BoundedHttpProtocol, None]] = {}

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
        self._half_sent[self] = None
        if len(self._half_sent) > MAX_HALF_SENT:
            oldest = next(iter(self._half_sent))
            oldest._end("503 Service Unavailable", "Too many requests are half sent: send this one again.")

    def _forget_head(self) -> None:
        self._half_sent.pop(self, None)
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
