"""Network links between processes that can be cut or silenced, without root privileges.

A link is a port of this machine that forwards every connection to one of several addresses. A cut link closes
all connections and accepts no new ones. A silent link keeps them but forwards nothing, like an unplugged
cable.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

_PIECE_BYTES = 64 << 10
Address = tuple[str, int]


class Links:
    """All links of a rig, forwarded by a thread of this process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._links: list[Link] = []

    def add(self, *targets: Address) -> Link:
        """Return a new link. A connection goes to the next target that accepts it."""
        link = Link(self._loop, targets)
        link.await_ready()
        self._links.append(link)
        return link

    def close(self) -> None:
        for link in self._links:
            link.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Link:
    """One port that forwards to its targets in turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, targets: Sequence[Address]) -> None:
        self._loop = loop
        self._targets = targets
        self._turn = itertools.count()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self.host, self.port = "127.0.0.1", 0

    def await_ready(self) -> None:
        self._run(self._listen())

    def cut(self) -> None:
        """End all connections, and refuse others until `restore`."""
        self._run(self._stop())

    def silence(self) -> None:
        """Forward nothing until `restore`; connections stay open."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def restore(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)
        self._run(self._listen())

    @contextmanager
    def being_cut(self) -> Iterator[None]:
        self.cut()
        try:
            yield
        finally:
            self.restore()

    @contextmanager
    def being_silent(self) -> Iterator[None]:
        self.silence()
        try:
            yield
        finally:
            self.restore()

    def _run(self, coroutine: Any) -> None:
        waiting: Future[None] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        waiting.result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._forward, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(self._turn)
        for at in range(len(self._targets)):
            host, port = self._targets[(first + at) % len(self._targets)]
            with contextlib.suppress(OSError):
                far_reader, far_writer = await asyncio.open_connection(host, port)
                break
        else:
            writer.close()
            return
        pumps = [
            self._loop.create_task(self._pump(reader, far_writer)),
            self._loop.create_task(self._pump(far_reader, writer)),
        ]
        self._pumps.update(pumps)
        for pump in pumps:
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction until it ends, then end the connection on the far side."""
        with contextlib.suppress(OSError):
            try:
                while data := await reader.read(_PIECE_BYTES):
                    await self._flows.wait()
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()
