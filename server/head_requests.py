"""HEAD requests, answered as GET requests without the body."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """ASGI middleware that answers HEAD with the status and the headers of GET.

    The handler is cancelled once its response begins, because the body may be a large file or an endless
    stream.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        as_get = {**scope, "method": "GET"}
        has_begun = asyncio.Event()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["route"] = as_get.get("route")  # for the metrics
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                has_begun.set()

        handler = asyncio.ensure_future(self._app(as_get, receive, send_head))
        beginning = asyncio.ensure_future(has_begun.wait())
        try:
            await asyncio.wait({handler, beginning}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            beginning.cancel()
            handler.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await handler
