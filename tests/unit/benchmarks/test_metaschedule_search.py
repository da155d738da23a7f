"""The timeline recorded while MetaSchedule tunes: times of trials, failures, set-up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.engines.metaschedule_search import _Timeline
from benchmarks.timing.measurer import Candidate


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(Candidate, "scheduled", lambda name: Candidate(name, None))
    return Clock()


def _measured(name: str, *secs: float) -> Any:
    result = SimpleNamespace(run_secs=list(secs) or None, error_msg=None if secs else "failed")
    return SimpleNamespace(sch=SimpleNamespace(mod=name)), result


def test_a_trial_is_recorded_after_its_run(clock: Clock) -> None:
    timeline = _Timeline(clock)
    clock.now_s = 115.0
    timeline.building()
    for clock.now_s in (120.0, 121.0):
        timeline.ran()
    clock.now_s = 125.0
    timeline.batch([_measured("a", 1.0, 3.0), _measured("b"), _measured("c", 4.0)], [True, False, True])
    clock.now_s = 130.0
    timeline.building()
    clock.now_s = 140.0
    timeline.ran()
    timeline.batch([_measured("d")], [True])
    clock.now_s = 150.0
    tuned = timeline.tuned("")
    assert [(one.run_s, one.at_s) for one in tuned.trials] == [
        (2.0, 20.0),
        (math.inf, 20.0),
        (4.0, 21.0),
        (math.inf, 40.0),
    ]
    assert [one.candidate.module_json for one in tuned.trials if one.candidate] == list("abcd")
    assert (tuned.set_up_s, tuned.seconds) == (15.0, 40.0)


def test_nothing_measured_is_no_trial(clock: Clock) -> None:
    tuned = _Timeline(clock).tuned("it broke")
    assert (tuned.trials, tuned.seconds, tuned.error) == ((), 0.0, "it broke")
