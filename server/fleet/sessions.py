"""The workers' sessions that called this server lately, and how often it wants to hear from them."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from records.jobs.fair_queue import LEASE_S

# Longer than any worker that is there is silent: a call is held back for 30 s at most.
FORGET_S = 60.0
# With few workers, people see every second how far they are. A thousand that did so would keep any server
# busy; so all together call about so many times a second, until each calls once in a lease.
CALLS_A_SECOND = 50.0
LEAST_S, MOST_S = 1.0, LEASE_S
# A lease outlives two calls that were lost.
_CALLS_A_LEASE, _LEAST_TTL_S = 3, 30.0


class RegisteredSession(NamedTuple):
    """What has to be stored of a session before it may work. One that works again after it was drained is
    stored anew: jobs may have waited for it."""

    session_id: str
    device_class: str | None
    draining: bool
    builds_for: tuple[str, ...]


class SessionCache:
    """What is known of each worker's session; one that was forgotten is stored anew when it calls again."""

    def __init__(self) -> None:
        # Who called last is last.
        self._known: OrderedDict[str, tuple[RegisteredSession, float]] = OrderedDict()

    def get(self, worker_id: str) -> RegisteredSession | None:
        known, _ = self._known.get(worker_id, (None, 0.0))
        return known

    def put(self, worker_id: str, known: RegisteredSession, now: float) -> None:
        """Note that the worker has called; those that have been silent for long are forgotten. `now` are the
        seconds of a clock that nobody sets."""
        self._known[worker_id] = known, now
        self._known.move_to_end(worker_id)
        while now - next(iter(self._known.values()))[1] > FORGET_S:
            self._known.popitem(last=False)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def busy_s(self) -> float:
        """After how many seconds a worker that holds a lease is to call again."""
        return min(max(len(self) / CALLS_A_SECOND, LEAST_S), MOST_S)

    @property
    def ttl_s(self) -> float:
        """For so long a lease is a worker's that doesn't call."""
        return max(_CALLS_A_LEASE * self.busy_s, _LEAST_TTL_S)
