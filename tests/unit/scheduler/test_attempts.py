"""Attempts without progress are counted, retried with growing delays, and given up."""

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
        return attempts.read(session, "job", limit=99)


def make_progress(farm: Farm) -> None:
    with farm.database.begin() as session:
        events.append(session, "job", "round", {}, farm.now)


@pytest.fixture(autouse=True)
def job(farm: Farm) -> None:
    farm.submit()


def test_the_first_retry_is_immediate_and_later_ones_are_delayed(farm: Farm) -> None:
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


def test_progress_ends_the_count(farm: Farm) -> None:
    for _ in range(7):
        farm.now += 100
        begin(farm)
        make_progress(farm)
    assert read(farm) == attempts.Attempts(0, 0.0)
