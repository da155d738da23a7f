"""The worker sessions that called this server lately, and how often each worker should call.

An overloaded server must not lose leases: their work would be repeated, which is more load. So the interval
of calls and the life of a lease grow with the time that calls take.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from cachetools import TTLCache

from records.fleet.fair_queue import LEASE_S

# Longer than any live worker is silent, because a call waits for work for at most 30 s.
FORGET_S = 60.0
# The calls a second of all workers together. A few workers call every second, so that progress is visible. A
# thousand workers call less often, but at least once in a lease.
CALLS_A_SECOND = 50.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 1.0, LEASE_S
# A worker that holds a lease rests at least this many times as long as calls take. So an overloaded server
# has fewer calls to answer.
RESTS_PER_CALL = 4.0
# A lease outlives two lost calls, however long calls take.
_CALLS_PER_LEASE, _MIN_LEASE_TTL_S = 3, 30.0
# The part of the latest call in the average time of calls.
_LATEST = 1 / 16


class RegisteredSession(NamedTuple):
    """The state of a session that the database must hold before the worker may work.

    A call that reports anything else registers the session again. `draining` is a part of it because jobs may
    have waited for a worker that works again after it was drained: registering it wakes them.
    """

    session_id: str
    device_class: str | None
    draining: bool
    builds_for: tuple[str, ...]


class SessionCache:
    """The registered session of every worker that called in the last FORGET_S seconds.

    A worker that was forgotten is registered again when it calls. The cache belongs to the event loop.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._by_worker: TTLCache[str, RegisteredSession] = TTLCache(math.inf, FORGET_S, timer)
        self._call_s = 0.0

    def get(self, worker_id: str) -> RegisteredSession | None:
        return self._by_worker.get(worker_id)

    def put(self, worker_id: str, session: RegisteredSession) -> None:
        """Note that the worker has called with this session."""
        self._by_worker[worker_id] = session

    def __len__(self) -> int:
        return len(self._by_worker)

    def note_call(self, seconds: float) -> None:
        """Note how long a call took to be stored, with its wait for a thread and for locks."""
        self._call_s += _LATEST * (seconds - self._call_s)

    @property
    def call_interval_s(self) -> float:
        """Seconds after which a worker that holds a lease is to call again."""
        wanted_s = max(len(self) / CALLS_A_SECOND, RESTS_PER_CALL * self._call_s)
        return min(max(wanted_s, MIN_INTERVAL_S), MAX_INTERVAL_S)

    @property
    def lease_ttl_s(self) -> float:
        """Seconds for which a worker that doesn't call keeps its lease."""
        return max(_CALLS_PER_LEASE * (self.call_interval_s + self._call_s), _MIN_LEASE_TTL_S)
