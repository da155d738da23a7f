"""Sleep in calls that wait for news, but end when the server stops."""

from __future__ import annotations

import asyncio


async def sleep_unless_stopping(stopping: asyncio.Event, seconds: float) -> None:
    """Sleep, but return at once when `stopping` is set."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return
