"""Sessions are cached while their workers call. With more workers, each calls less often."""

from __future__ import annotations

import pytest

from server.fleet.sessions import FORGET_S, MAX_INTERVAL_S, MIN_INTERVAL_S, RegisteredSession, SessionCache
from tests.unit.conftest import Clock


@pytest.fixture
def sessions(clock: Clock) -> SessionCache:
    return SessionCache(clock)


def session(name: str) -> RegisteredSession:
    return RegisteredSession(name, "class", False, ())


def test_only_silent_workers_leave_the_session_cache(clock: Clock, sessions: SessionCache) -> None:
    sessions.put("gone", session("one"))
    for second in range(1, 200):
        clock.now = second
        sessions.put("there", session("two"))
        sessions.put(f"new {second}", session("three"))
        assert (sessions.get("gone") is None) == (second >= FORGET_S)
    assert sessions.get("there") == session("two")
    assert sessions.get("new 199") == session("three")
    assert sessions.get("new 100") is None
    assert len(sessions) == FORGET_S + 1


def test_a_newer_session_replaces_the_older(sessions: SessionCache) -> None:
    sessions.put("worker", session("old"))
    sessions.put("worker", session("new"))
    assert (sessions.get("worker"), len(sessions)) == (session("new"), 1)


@pytest.mark.parametrize(
    ("workers", "interval_s", "ttl_s"),
    [
        (0, MIN_INTERVAL_S, 30.0),
        (50, 1.0, 30.0),
        (200, 4.0, 30.0),
        (600, 12.0, 36.0),
        (5000, MAX_INTERVAL_S, 3 * MAX_INTERVAL_S),
    ],
)
def test_the_call_interval_grows_with_the_number_of_workers(
    sessions: SessionCache, workers: int, interval_s: float, ttl_s: float
) -> None:
    for number in range(workers):
        sessions.put(f"worker {number}", session("session"))
    assert (sessions.call_interval_s, sessions.lease_ttl_s) == (interval_s, ttl_s)


@pytest.mark.parametrize(
    ("workers", "call_s", "interval_s", "ttl_s"),
    [
        (10, 0.1, MIN_INTERVAL_S, 30.0),
        (10, 1.0, 4.0, 30.0),
        (600, 1.0, 12.0, 39.0),
        (600, 4.0, 16.0, 60.0),
        (600, 30.0, MAX_INTERVAL_S, 150.0),
    ],
)
def test_workers_call_rarely_and_leases_last_longer_while_calls_take_long(
    sessions: SessionCache, workers: int, call_s: float, interval_s: float, ttl_s: float
) -> None:
    for number in range(workers):
        sessions.put(f"worker {number}", session("session"))
    for _ in range(500):
        sessions.note_call(call_s)
    assert (sessions.call_interval_s, sessions.lease_ttl_s) == pytest.approx((interval_s, ttl_s))
    for _ in range(500):
        sessions.note_call(0.0)
    assert sessions.call_interval_s == max(workers / 50, MIN_INTERVAL_S)
