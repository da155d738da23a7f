"""An HTTP server on loopback that answers each request with the result of a test's function."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Message
    content: bytes

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query)


@dataclass(frozen=True)
class Reply:
    """With `is_cut`, the connection breaks after the content, although the header announces more."""

    status: int = 200
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_cut: bool = False


# None: the connection breaks before the status.
BROKEN = Reply(status=0)


def json_reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})})


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up early, so that nothing is written to the next test's stderr."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def answering(answer: Callable[[Request], Reply]) -> Iterator[str]:
    """Serve on a free port; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = answer(Request(self.command, self.path, self.headers, content))
            if reply.status == 0:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.content) + reply.is_cut))
            self.end_headers()
            self.wfile.write(reply.content)

        do_GET = do_POST = do_DELETE = _respond  # noqa: N815

        def log_message(self, *_args: object) -> None:
            """Log nothing."""

    with _Server(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()
