"""Sessions are remembered as long as their workers call, and many of them call seldom."""

from __future__ import annotations

import pytest

from server.fleet.sessions import FORGET_S, LEAST_S, MOST_S, RegisteredSession, SessionCache


def known(name: str) -> RegisteredSession:
    return RegisteredSession(name, "class", False, ())


def test_who_has_gone_is_forgotten_and_who_calls_is_not() -> None:
    sessions = SessionCache()
    sessions.put("gone", known("one"), 0.0)
    for second in range(1, 200):
        sessions.put("there", known("two"), float(second))
        sessions.put(f"new {second}", known("three"), float(second))
        assert (sessions.get("gone") is None) == (second > FORGET_S)
    assert sessions.get("there") == known("two")
    assert sessions.get("new 199") == known("three")
    assert sessions.get("new 100") is None
    assert len(sessions) == FORGET_S + 2


def test_a_newer_session_takes_the_place_of_the_older() -> None:
    sessions = SessionCache()
    sessions.put("worker", known("old"), 0.0)
    sessions.put("worker", known("new"), 1.0)
    assert (sessions.get("worker"), len(sessions)) == (known("new"), 1)


@pytest.mark.parametrize(
    ("workers", "seconds", "ttl_s"),
    [(0, LEAST_S, 30.0), (50, 1.0, 30.0), (200, 4.0, 30.0), (600, 12.0, 36.0), (5000, MOST_S, 3 * MOST_S)],
)
def test_the_more_workers_the_less_often_each_is_to_call(workers: int, seconds: float, ttl_s: float) -> None:
    sessions = SessionCache()
    for number in range(workers):
        sessions.put(f"worker {number}", known("session"), 0.0)
    assert (sessions.busy_s, sessions.ttl_s) == (seconds, ttl_s)
