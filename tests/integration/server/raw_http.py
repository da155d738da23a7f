"""Connections that send a server bytes that no HTTP client sends."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx

from .conftest import Service


@contextlib.contextmanager
def connection(service: Service) -> Iterator[socket.socket]:
    port = httpx.URL(service.url).port
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=30)) as client:
        yield client


def answer(client: socket.socket) -> str:
    """Return everything that the server sends before it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(65536):
            received += data
    return received.decode()
