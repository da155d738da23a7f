"""One worker builds and another measures, with real processes and code, even if the builder is killed."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from core.measurement import Outcome
from records.jobs import jobs, tasks, trials
from records.jobs.trials import Trial
from records.storage.database import Database
from tests.onnx_models import Builder
from tests.processes import Service, service, until, worker

pytestmark = [pytest.mark.slow_lane(seconds=20), pytest.mark.timeout(900)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of one convolution."""
    builder, path = Builder(), tmp_path / "tiny.onnx"
    result = builder.conv("x", 8, 16, 3)
    path.write_bytes(builder.model({"x": [1, 8, 14, 14]}, {result: [1, 16, 14, 14]}))
    return path


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path) as made:
        yield made


def finished(tuning: subprocess.Popen[str]) -> dict[str, object]:
    out, errors = tuning.communicate()
    assert tuning.returncode == 0, errors
    return dict(json.loads(out)["job"])


def stored(farm: Service) -> tuple[list[Trial], int]:
    """Return the trials of the only job, and the number of stored libraries."""
    database = Database(farm.database_url)
    with database.begin() as session:
        (job,) = jobs.list_jobs(session, 10, None)
        found = [one for task in tasks.for_job(session, job.id) for one in trials.for_task(session, task.id)]
        kept = session.scalar(text("SELECT count(*) FROM libraries"))
    database.close()
    return found, int(kept or 0)


def holds_a_lease(farm: Service) -> bool:
    return bool(farm.shown("builder").get("lease"))


def published_faster(folder: Path) -> bool:
    manifest = json.loads((folder / "tiny-tuned" / "manifest.json").read_text())
    return statistics.median(manifest["tuned_s"]) <= statistics.median(manifest["untuned_s"])


def test_killing_a_builder_loses_no_trial(farm: Service, model: Path) -> None:
    with ExitStack() as workers:
        workers.enter_context(worker(farm, "device", "--threads", "1"))
        builder = workers.enter_context(worker(farm, "builder", "--build", "--threads", "1"))
        tuning = farm.start_tuning(model, "--trials", "16", "--build", "builder")
        until(lambda: tuning.poll() is not None or holds_a_lease(farm), 400.0)
        builder.kill()
        workers.enter_context(worker(farm, "builder", "--build", "--threads", "1"))
        job = finished(tuning)
        built = farm.shown("builder")["trials_done"]
        measured = farm.shown("device")["trials_done"]
    found, kept = stored(farm)
    assert (job["state"], job["trials_done"]) == ("done", len(found))
    assert len(found) >= 16, "more if the machine was disturbed"
    assert Outcome.DEVICE_LOST not in {trial.outcome for trial in found}
    well = [trial for trial in found if trial.outcome is Outcome.OK]
    assert well
    assert all(trial.library_sha for trial in well), "the device built nothing"
    assert kept == 0
    assert built >= 8
    # The whole model is timed too, untuned and tuned.
    assert measured >= len(well)
    assert published_faster(farm.folder)


def test_devices_go_on_alone_when_the_builder_is_gone(farm: Service, model: Path) -> None:
    with ExitStack() as workers:
        workers.enter_context(worker(farm, "device", "--threads", "1"))
        # A builder with twice the device's cores builds for it by default.
        builder = workers.enter_context(worker(farm, "builder", "--build", "--threads", "2"))
        tuning = farm.start_tuning(model, "--trials", "16")
        until(lambda: tuning.poll() is not None or holds_a_lease(farm), 400.0)
        builder.kill()
        job = finished(tuning)
    found, kept = stored(farm)
    assert (job["state"], job["trials_done"]) == ("done", len(found))
    assert len(found) >= 16, "more if the machine was disturbed"
    assert Outcome.DEVICE_LOST not in {trial.outcome for trial in found}
    assert any(not trial.library_sha and trial.outcome is Outcome.OK for trial in found)
    assert kept == 0
