"""Counting what was begun and never finished."""

from __future__ import annotations

import pytest

from records.jobs import events, jobs
from scheduler.errors import PermanentError
from scheduler.steps import attempts
from tests.unit.scheduler.farm import Farm


def begin(farm: Farm, max_attempts: int = 3) -> bool:
    with farm.database.begin() as session:
        return attempts.begin(session, jobs.get(session, "job"), "thinking", farm.now, max_attempts)


def read(farm: Farm) -> attempts.Attempts:
    with farm.database.begin() as session:
        return attempts.read(session, "job")


def achieve(farm: Farm, kind: str = attempts.ROUND) -> None:
    with farm.database.begin() as session:
        events.append(session, "job", kind, {}, farm.now)


@pytest.fixture(autouse=True)
def job(farm: Farm) -> None:
    farm.submit()


def test_the_first_retry_comes_at_once_the_next_ones_later(farm: Farm) -> None:
    assert begin(farm, 9)
    assert begin(farm, 9)
    assert not begin(farm, 9)
    farm.now += 4.9
    assert not begin(farm, 9)
    farm.now += 0.1
    assert begin(farm, 9)
    farm.now += 14.9
    assert not begin(farm, 9)
    farm.now += 0.1
    assert begin(farm, 9)


def test_attempts_are_given_up_with_the_last_cause(farm: Farm) -> None:
    for _ in range(3):
        farm.now += 100
        assert begin(farm)
    with pytest.raises(PermanentError, match=r"^gave up after 3 attempts: thinking, attempt 3$"):
        begin(farm)


def test_an_achievement_ends_the_count(farm: Farm) -> None:
    for _ in range(7):
        farm.now += 100
        begin(farm)
        achieve(farm, "progress")
    assert read(farm).attempts == 0


def test_rounds_are_counted(farm: Farm) -> None:
    assert read(farm) == attempts.Attempts(0, 0.0, 0)
    achieve(farm)
    begin(farm)
    achieve(farm)
    assert read(farm).rounds == 2
