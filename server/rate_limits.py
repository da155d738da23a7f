"""Rate limits of clients, counted in this process's memory with a monotonic timer."""

from __future__ import annotations

import functools
import ipaddress
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from cachetools import TTLCache

OFF = "off"
# If more clients than this call within a window, the oldest windows are dropped.
MAX_CLIENTS = 100_000
_LIMIT = re.compile(r"(\d{1,9}) ?(?:/|per) ?(\d{1,4})? ?(second|minute|hour|day)s?")
_UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


@dataclass(frozen=True)
class Limit:
    """At most `calls` in `window_s` seconds."""

    calls: int
    window_s: int


@dataclass
class _Window:
    """The calls of a client since `began_s`, in seconds of the timer."""

    began_s: float
    calls: int = 0


def parse_limit(text: str) -> Limit | None:
    """Parse a limit such as "600/minute" or "10 per 2 hours"; None for "off" or "". Raises ValueError."""
    if text in ("", OFF):
        return None
    found = _LIMIT.fullmatch(text.strip().lower())
    window_s = int(found[2] or 1) * _UNIT_S[found[3]] if found else 0
    if found is None or window_s == 0:
        raise ValueError(f'a limit is like "600/minute", or "{OFF}", not {text!r}')
    return Limit(int(found[1]), window_s)


class RateLimiter:
    """One limit for each client. A window begins with the client's first call."""

    def __init__(self, text: str, timer: Callable[[], float] = time.monotonic) -> None:
        self._limit = parse_limit(text)
        window_s = self._limit.window_s if self._limit else 0
        self._timer = timer
        self._windows: TTLCache[str, _Window] = TTLCache(MAX_CLIENTS, window_s, timer=timer)

    def hit(self, client: str) -> int | None:
        """Count a call. Return the seconds to wait if it exceeds the limit, otherwise None."""
        wait_s = self.test(client)
        if self._limit is not None and wait_s is None:
            window = self._windows.get(client)
            if window is None:
                self._windows[client] = window = _Window(self._timer())
            window.calls += 1
        return wait_s

    def test(self, client: str) -> int | None:
        """Return the seconds to wait if no further call is allowed now, otherwise None. The call isn't
        counted."""
        window = self._windows.get(client)
        if self._limit is None or (window.calls if window else 0) < self._limit.calls:
            return None
        begin_s = window.began_s if window else self._timer()
        return max(1, math.ceil(begin_s + self._limit.window_s - self._timer()))


@functools.lru_cache(maxsize=10_000)
def network_of(address: str) -> str:
    """Return the key for counting an address: an IPv4 address, or the /64 network of an IPv6 address. A
    client with one IPv6 address usually has all 2**64 of its network."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
