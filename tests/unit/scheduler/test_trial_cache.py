"""Finished trials are read once."""

from __future__ import annotations

from typing import Any

import pytest

from records.jobs import trials
from records.jobs.trials import Trial
from scheduler.planning.trial_cache import TrialCache
from tests.unit.scheduler.farm import Farm


def test_finished_trials_are_read_once(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    farm.submit(trials=20)
    farm.plug_in()
    cache, read = TrialCache(), list[list[str]]()
    real = trials.of_job

    def noting(*args: Any) -> list[Trial]:
        found = real(*args)
        read.append([trial.state for trial in found])
        return found

    for _ in range(5):
        farm.tick()
        with farm.database.begin() as session, monkeypatch.context() as patched:
            patched.setattr(trials, "of_job", noting)
            by_task = cache.by_task(session, ["job", "job"])
        expected = farm.trials()
        assert [trial for task in farm.tasks() for trial in by_task.get(task.id, [])] == expected
    finished = [trial for trial in expected if trial.state == "done"]
    assert finished
    # Each trial is read at most once after it finished.
    assert sum(states.count("done") for states in read) == len(finished)
    # Another process reads them all; a cache that is too small holds none.
    for other in (TrialCache(), TrialCache(1)):
        with farm.database.begin() as session:
            assert other.by_task(session, ["job"]) == by_task
