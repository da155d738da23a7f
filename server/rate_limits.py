"""Rate limits for clients, counted in this process's memory by the library `limits`."""

from __future__ import annotations

import functools
import ipaddress
import math
import time

from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

OFF = "off"


def parse_limit(text: str) -> RateLimitItem | None:
    """Parse a limit such as "600/minute" or "10 per second"; None for "off" or "". Raises ValueError."""
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
        """Count a call. Return the seconds to wait if it exceeds the limit, otherwise None."""
        if self._item is None or await self._windows.hit(self._item, client):
            return None
        return await self._wait_s(self._item, client)

    async def test(self, client: str) -> int | None:
        """Return the seconds to wait when no further call is allowed now, otherwise None. Counts nothing."""
        if self._item is None or await self._windows.test(self._item, client):
            return None
        return await self._wait_s(self._item, client)

    async def _wait_s(self, item: RateLimitItem, client: str) -> int:
        window = await self._windows.get_window_stats(item, client)
        return max(1, math.ceil(window.reset_time - time.time()))


@functools.lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """Return the key that an address is counted by: an IPv4 address, or the /64 network of an IPv6 address. A
    client with one IPv6 address usually has all 2**64 of its network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
