"""A worker reaches the service on its own machine in spite of any proxies in the environment."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from worker.agent.service import open_channel

# Nothing answers there.
DEAD = "http://127.0.0.1:9"


@pytest.mark.parametrize("variable", ["grpc_proxy", "http_proxy", "https_proxy"])
def test_loopback_connections_use_no_proxy(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("grpc_proxy", "http_proxy", "https_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, DEAD)

    async def connect() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with open_channel(f"127.0.0.1:{port}", 1.0) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
        await server.stop(None)

    asyncio.run(connect())
