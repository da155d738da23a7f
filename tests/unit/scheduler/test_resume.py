"""If a scheduler is killed after any commit, the next one finishes the job. Nothing is lost or done twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy.orm import Session

from compiler.packaging.artifact import TaskEntry
from core.job import JobState
from records.schedules import schedules
from records.storage.database import Database, StorageError
from tests.services import renewed_sqlite
from tests.unit.scheduler.farm import DEVICE, MATMUL, TUNED, FakeCompiler, Farm

TRIALS = 4


class Killed(BaseException):
    """Simulates the end of the process, so no handler of the scheduler may catch it."""


class MortalDatabase(Database):
    """Raises Killed after `left` more commits. (Dying before one equals dying after the previous one.)"""

    left = 0

    @contextmanager
    def begin(self) -> Iterator[Session]:
        if self.left == 0:
            raise Killed
        with super().begin() as session:
            yield session
        self.left -= 1
        if self.left == 0:
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


@pytest.fixture
def mortal(database: Database) -> Iterator[MortalDatabase]:
    """Return one database for all lives of a test, because compiling statements takes longer than a life."""
    with closing(MortalDatabase(f"sqlite:///{database.name}")) as mortal:
        yield mortal


@pytest.mark.slow_lane(seconds=28)
def test_killed_at_any_commit_the_job_resumes(
    database: Database, mortal: MortalDatabase, compiler: FakeCompiler
) -> None:
    compiler.tasks = [MATMUL]
    dies_at = 0
    survived = False
    while not survived:
        dies_at += 1
        survived = _live_twice(database, mortal, dies_at, compiler)
    assert dies_at > 25


def _live_twice(database: Database, mortal: MortalDatabase, dies_at: int, compiler: FakeCompiler) -> bool:
    """Run a job with a scheduler that dies, then with its successor. Return whether the first survived."""
    renewed_sqlite(Path(database.name))
    with closing(database), closing(mortal):
        farm = Farm(database, compiler=compiler)
        farm.submit(trials=TRIALS)
        farm.plug_in()
        mortal.left = dies_at
        farm.restart(mortal, plan_ahead=1, batch_size=2)
        try:
            farm.finish()
            survived = True
        except Killed:
            farm.restart(plan_ahead=1, batch_size=2)
            farm.finish()
            survived = False
        check_complete(farm)
    return survived


@pytest.mark.slow_lane(seconds=28)
def test_a_job_resumes_after_a_kill_during_bisection(
    database: Database, mortal: MortalDatabase, compiler: FakeCompiler
) -> None:
    def live(dies_at: int) -> tuple[int, bytes, tuple[TaskEntry, ...]]:
        """Run a job whose first scheduler dies `dies_at` commits after the first model was compiled.

        Return the number of models that were timed, and the library and the subgraphs that were published.
        """
        renewed_sqlite(Path(database.name))
        with closing(database), closing(mortal):
            farm = Farm(database, compiler=compiler)
            compiler.harmful = lambda trace: trace == fastest()
            farm.submit(trials=12)
            farm.plug_in()
            while not [run for run in farm.runs() if run.kind == "tuned"]:
                farm.tick()
            mortal.left = dies_at
            farm.restart(mortal)
            try:
                farm.finish()
            except Killed:
                farm.restart()
                farm.finish()
            library, manifest = farm.published()
            return len(farm.runs()), library, manifest.tasks

    def fastest() -> str:
        with database.begin() as session:
            return schedules.successes(session, DEVICE.key, [MATMUL.workload_hash])[0].trace

    undisturbed = live(1000)
    assert undisturbed[0] > 3, "it takes some to find it"
    assert undisturbed[1] == TUNED
    for dies_at in range(1, 25):
        assert live(dies_at) == undisturbed


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_temporary_storage_failures_only_delay_the_job(farm: Farm, database_file: Path, seed: int) -> None:
    farm.submit(trials=TRIALS)
    farm.plug_in()
    faulty = FaultyDatabase(f"sqlite:///{database_file}", seed)
    farm.restart(faulty)
    farm.finish(ticks=300)
    check_complete(farm)
    faulty.close()
