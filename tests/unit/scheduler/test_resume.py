"""If a scheduler is killed after any commit, the next one finishes the job. Nothing is lost or done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy.orm import Session

from core.job import JobState
from records.schedules import schedules
from records.storage.database import Database, StorageError
from tests.services import sqlite
from tests.unit.scheduler.farm import DEVICE, MATMUL, TUNED, FakeCompiler, Farm

TRIALS = 4


class Killed(BaseException):
    """Simulates the end of the process, so no handler of the scheduler may catch it."""


class MortalDatabase(Database):
    """Raises Killed right after commit `dies_at`. (Before a commit is the same as after the one before.)"""

    def __init__(self, url: str, dies_at: int) -> None:
        super().__init__(url)
        self._left = dies_at

    @contextmanager
    def begin(self) -> Iterator[Session]:
        if self._left == 0:
            raise Killed
        with super().begin() as session:
            yield session
        self._left -= 1
        if self._left == 0:
            raise Killed


class FaultyDatabase(Database):
    """One transaction in six fails at its end, as on a disk that is full now and then."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(url)
        self._rng = np.random.default_rng(seed)

    @contextmanager
    def begin(self) -> Iterator[Session]:
        with super().begin() as session:
            yield session
            if self._rng.integers(6) == 0:
                raise StorageError("the disk is full")


def check_complete(farm: Farm) -> None:
    job = farm.job()
    assert (job.state, job.trials_done, job.trials_issued) == (JobState.DONE, TRIALS, TRIALS)
    assert farm.published()[0] == TUNED
    trials = farm.trials()
    issued = {(trial.workload_hash, trial.trace, trial.repeat) for trial in trials}
    assert len(issued) == len(trials) == TRIALS
    assert sorted(farm.measured) == sorted(trial.id for trial in trials)
    assert len(farm.records()) == len({trial.trace for trial in trials})
    assert Counter(run.kind for run in farm.runs()) == {"untuned": 1, "tuned": 1}


@pytest.mark.slow_lane
def test_killed_at_any_commit_the_job_resumes(tmp_path: Path, compiler: FakeCompiler) -> None:
    compiler.tasks = [MATMUL]
    dies_at = 0
    survived = False
    while not survived:
        dies_at += 1
        survived = _live_twice(sqlite(tmp_path / f"{dies_at}.db"), dies_at, compiler)
    assert dies_at > 25


def _live_twice(url: str, dies_at: int, compiler: FakeCompiler) -> bool:
    """Run a job with a scheduler that dies, then with its successor. Return whether the first survived."""
    farm = Farm(Database(url), compiler=compiler)
    mortal = MortalDatabase(url, dies_at)
    farm.submit(trials=TRIALS)
    farm.plug_in()
    farm.restart(mortal, plan_ahead=1, batch_size=2)
    try:
        farm.finish()
        return True
    except Killed:
        farm.restart(plan_ahead=1, batch_size=2)
        farm.finish()
        return False
    finally:
        check_complete(farm)
        mortal.close()
        farm.database.close()


@pytest.mark.slow_lane
def test_killed_while_it_looks_for_a_harmful_schedule_the_job_resumes(
    tmp_path: Path, compiler: FakeCompiler
) -> None:
    def live(dies_at: int) -> Farm:
        """Run a job whose first scheduler dies `dies_at` commits after the first model was compiled."""
        url = sqlite(tmp_path / f"{dies_at}.db")
        farm = Farm(Database(url), compiler=compiler)
        compiler.harmful = lambda trace: trace == fastest(farm)
        farm.submit(trials=12)
        farm.plug_in()
        while not [run for run in farm.runs() if run.kind == "tuned"]:
            farm.tick()
        mortal = MortalDatabase(url, dies_at)
        farm.restart(mortal)
        try:
            farm.finish()
        except Killed:
            farm.restart()
            farm.finish()
        mortal.close()
        return farm

    def fastest(farm: Farm) -> str:
        with farm.database.begin() as session:
            return schedules.successes(session, DEVICE.key, [MATMUL.workload_hash])[0].trace

    undisturbed = live(1000)
    attempts = len(undisturbed.runs())
    assert attempts > 3, "it takes some to find it"
    for dies_at in range(1, 25):
        farm = live(dies_at)
        assert farm.published()[1].tasks == undisturbed.published()[1].tasks
        assert len(farm.runs()) == attempts
        assert farm.published()[0] == TUNED
        farm.database.close()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_storage_that_fails_now_and_then_delays_the_job_and_no_more(
    farm: Farm, database_file: Path, seed: int
) -> None:
    farm.submit(trials=TRIALS)
    farm.plug_in()
    faulty = FaultyDatabase(f"sqlite:///{database_file}", seed)
    farm.restart(faulty)
    farm.finish(ticks=300)
    check_complete(farm)
    faulty.close()
