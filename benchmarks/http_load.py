"""Generate HTTP load over keep-alive connections. Each connection sends the next request as soon as it has a
response."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools


@dataclass
class LoadStats:
    """The responses: the seconds of each, the number of each status, and the total seconds."""

    answer_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def a_second(self) -> float:
        return len(self.answer_s) / self.seconds

    def percentile_s(self, rank: int) -> float:
        return statistics.quantiles(self.answer_s, n=100, method="inclusive")[rank - 1]


def request(method: str, url: str, token: str, body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of an HTTP/1.1 request. Underscores in the names of headers become dashes."""
    parts = urlsplit(url)
    lines = [
        f"{method} {parts.path}{'?' + parts.query if parts.query else ''} HTTP/1.1",
        f"Host: {parts.netloc}",
    ]
    lines += [f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def load(url: str, requests: Sequence[bytes], connections: int, seconds: float) -> LoadStats:
    """Send the requests repeatedly in turns for `seconds`. Raises OSError."""
    return asyncio.run(_load(url, itertools.cycle(requests), connections, seconds))


def once(url: str, requests: Sequence[bytes], connections: int) -> LoadStats:
    """Send each request once. Raises OSError."""
    return asyncio.run(_load(url, iter(requests), connections, float("inf")))


async def _load(url: str, requests: Iterator[bytes], connections: int, seconds: float) -> LoadStats:
    stats, parts = LoadStats(), urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = []
    for _ in range(connections):
        _, connection = await loop.create_connection(
            lambda: _Connection(requests, stats, began + seconds), host, port
        )
        made.append(connection.finished)
    await asyncio.gather(*made)
    stats.seconds = time.perf_counter() - began
    return stats


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], stats: LoadStats, until: float) -> None:
        self._requests = requests
        self._stats = stats
        self._until = until
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self._stats.answer_s.append(now - self._asked_at)
        self._stats.statuses[self._parser.get_status_code()] += 1
        self._ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.finished.done():
            self.finished.set_exception(error or ConnectionError("the server closed the connection"))

    def _ask(self) -> None:
        self._asked_at = time.perf_counter()
        request = next(self._requests, None) if self._asked_at < self._until else None
        if request is None:
            self.finished.set_result(None)
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
