"""Kill processes of the real stack while it tunes with TVM. The job must finish all the same."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import onnx
import psutil
import pytest

from core.job import JobState
from core.measurement import Outcome
from examples.make_models import make
from records.jobs import jobs, tasks, trials
from records.storage.database import Database
from tests.acceptance.commands import family

pytestmark = [pytest.mark.slow_lane(seconds=32), pytest.mark.timeout(1200)]

TRIALS = 64


def kill_one(of: subprocess.Popen[bytes], module: str, errors: Path) -> None:
    """Wait for a process of the module, and kill the youngest."""
    found: list[psutil.Process] = []
    while not found:
        assert of.poll() is None, errors.read_text()
        time.sleep(0.1)
        found = family(of.pid, module)
    found[-1].kill()


def test_a_job_survives_the_death_of_each_of_its_processes(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    # A model with more subgraphs than other tests use, because the job has to last.
    onnx.save(make("resnet18", tiny=True), model)
    command = [sys.executable, "-m", "tunefarm", "tune", str(model), "--trials", str(TRIALS)]
    errors = tmp_path / "errors"
    with errors.open("wb") as file:
        tuning = subprocess.Popen(
            [*command, "--output", "out"], env=environment, cwd=tmp_path, stdout=file, stderr=file
        )
    for module in ("worker.runner.child", "worker", "server", "scheduler"):
        while "measuring" not in errors.read_text() and tuning.poll() is None:
            time.sleep(0.1)
        kill_one(tuning, module, errors)
        time.sleep(1.0)
    assert tuning.wait() == 0, errors.read_text()
    database = Database(f"sqlite:///{tmp_path}/data/tunefarm.db")
    with database.begin() as session:
        (job,) = jobs.list_jobs(session, 10, None)
        of_tasks = [trials.for_task(session, task.id) for task in tasks.for_job(session, job.id)]
    database.close()
    assert job.state is JobState.DONE
    measured = [trial.outcome for of_task in of_tasks for trial in of_task]
    # On a disturbed machine, the best schedules are measured again.
    assert len(measured) == job.trials_done >= TRIALS
    assert Outcome.DEVICE_LOST not in measured
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert statistics.median(manifest["tuned_s"]) <= statistics.median(manifest["untuned_s"])
