"""Which series level off, and which don't."""

from __future__ import annotations

import random

import pytest

from tests.faults.soak import faults
from tests.faults.soak.levels import Level

HOURS = [number * 0.05 for number in range(240)]


def level(kind: str, start: float, a_sample: float, noise: float) -> Level:
    draw = random.Random(0)
    values = [start + a_sample * at + draw.uniform(-noise, noise) for at in range(len(HOURS))]
    return Level("server-1", kind, HOURS, values)


@pytest.mark.parametrize(
    ("kind", "start", "noise"), [("memory", 120.0, 3.0), ("rows", 240.0, 100.0), ("descriptors", 40.0, 5.0)]
)
def test_noise_is_not_reported_as_growth(kind: str, start: float, noise: float) -> None:
    assert level(kind, start, 0.0, noise).verdict == ""


def test_a_kilobyte_for_every_trial_is_growth() -> None:
    # 70 trials a sample: 0.07 MiB
    assert level("memory", 120.0, 0.07, 0.0).verdict == (
        "the memory of server-1 does not level off: it grew by 8.33 MiB in the second half "
        "(1.4 in a simulated hour), and 4 MiB is allowed"
    )


def test_a_row_that_every_job_leaves_is_growth() -> None:
    assert "does not level off" in level("rows", 0.0, 1.0, 0.0).verdict


def test_a_series_that_grows_only_in_the_first_half_levels_off() -> None:
    values = [min(at, 100) * 5.0 for at in range(len(HOURS))]
    assert Level("scheduler-1", "memory", HOURS, values).verdict == ""


def test_a_growing_figure_reports_its_level() -> None:
    mean, found = level("threads", 10.0, 0.1, 0.0).figures()
    assert mean.name == "server-1: mean in the second half, threads"
    assert (found.name, found.reached) == ("server-1: growth in the second half, threads", False)
    assert found.note.endswith("at the end 33.9; 2 in a simulated hour")


def test_each_fault_happens_once_before_any_repeats() -> None:
    names = list(faults.FAULTS)
    following = faults.order(names, random.Random(1))
    for _ in range(3):
        assert sorted(following() for _ in names) == sorted(names)
