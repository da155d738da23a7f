"""Upload invalid models to the server."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from random import Random

import httpx

from tests.fuzz.failures import Failures
from tests.fuzz.models import files
from tests.fuzz.service import Growth, Service

KIND = "HTTP"
AT_ONCE = 8
SAMPLES = 40
TIMEOUT_S = 60.0
PROBLEM = "application/problem+json"
# A server may close an idle connection just as the next request arrives.
ONE_REQUEST_EACH = httpx.Limits(max_keepalive_connections=0)


class Uploader:
    """Uploads AT_ONCE files at a time and judges the answers."""

    def __init__(self, service: Service, failures: Failures, growth: Growth) -> None:
        self._service = service
        self._failures = failures
        self._growth = growth
        self.answers: Counter[str] = Counter()

    def send(self, count: int, rng: Random) -> None:
        """Upload `count` files, fewer when the server ends."""
        asyncio.run(self._send(count, rng))

    async def _send(self, count: int, rng: Random) -> None:
        source = self._numbered(count, files(rng))
        headers = {"Authorization": f"Bearer {self._service.worker}"}
        async with httpx.AsyncClient(
            base_url=self._service.http,
            headers=headers,
            trust_env=False,
            timeout=TIMEOUT_S,
            limits=ONE_REQUEST_EACH,
        ) as client:
            await asyncio.gather(*(self._take(source, client) for _ in range(AT_ONCE)))

    def _numbered(self, count: int, source: Iterator[bytes]) -> Iterator[bytes]:
        every = max(count // SAMPLES, 1)
        for number in range(count):
            if number % every == 0:
                self._service.sample(self._growth, number)
            yield next(source)
        self._service.sample(self._growth, count)

    async def _take(self, source: Iterator[bytes], client: httpx.AsyncClient) -> None:
        for data in source:
            try:
                answer = await client.post("/v1/models?name=fuzzed", content=data)
                status, fault = str(answer.status_code), fault_of(answer, data)
            except httpx.TransportError as error:
                status = fault = type(error).__name__
            self.answers[status] += 1
            if fault:
                self._failures.note(f"{KIND} {fault}", data)
            if self._service.ended():
                return


def fault_of(answer: httpx.Response, data: bytes) -> str:
    """Return the error in the answer to an upload; "" if it is right."""
    status = answer.status_code
    try:
        body = answer.json()
    except ValueError:
        return f"{status} without JSON"
    if status == 201:
        return "" if body.get("sha256") == hashlib.sha256(data).hexdigest() else "201 of another file"
    if not 400 <= status < 500:
        return str(status)
    is_problem = answer.headers.get("content-type") == PROBLEM and body.get("status") == status
    return "" if is_problem else f"{status} without a problem document"
