"""How many calls a client may make, counted in this process's memory by the library `limits`."""

from __future__ import annotations

import ipaddress
import math
import time

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

OFF = "off"


def parse_limit(text: str) -> RateLimitItem | None:
    """What "600/minute" or "10 per second" means; None for "off" or nothing. Raises ValueError."""
    if text in ("", OFF):
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f'a limit is like "600/minute", or "{OFF}", not {text!r}') from error


class RateLimiter:
    """One limit, held for each client by itself. A window begins with a client's first call in it."""

    def __init__(self, text: str) -> None:
        self._item = parse_limit(text)
        self._windows = FixedWindowRateLimiter(MemoryStorage())

    async def hit(self, client: str) -> int | None:
        """Counts a call; seconds to wait when it is one too many, otherwise None."""
        if self._item is None or await self._windows.hit(self._item, client):
            return None
        return await self._wait_s(self._item, client)

    async def reached(self, client: str) -> int | None:
        """Without counting: seconds to wait when no further call is allowed now, otherwise None."""
        if self._item is None or await self._windows.test(self._item, client):
            return None
        return await self._wait_s(self._item, client)

    async def _wait_s(self, item: RateLimitItem, client: str) -> int:
        window = await self._windows.get_window_stats(item, client)
        return max(1, math.ceil(window.reset_time - time.time()))


def network_of(address: str) -> str:
    """What an address counts as: whoever has one IPv6 address has the 2**64 of its network too."""
    try:
        parsed_address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed_address.version == 4:
        return str(parsed_address)
    mapped = parsed_address.ipv4_mapped
    return str(mapped or ipaddress.ip_network((int(parsed_address) >> 64 << 64, 64)))
