"""Commands that read or change the data folder of a service that isn't running."""

from __future__ import annotations

import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from core.job import UNFINISHED, Budget, JobState
from core.worker import WorkerState
from records import devices
from records.fleet import workers
from records.fleet.workers import WorkerSession
from records.jobs import jobs, models, tasks
from records.jobs.jobs import JobRequest
from records.schedules import imports
from records.storage import blobs
from records.storage.database import Database
from tests.devices import DEVICE
from tests.unit.records.farm import record
from tunefarm.cli.app import app, run
from tunefarm.embedded import stack
from tunefarm.embedded.folder import DataFolder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolder:
    """A data folder with a job that is done and one that isn't."""
    for name in ("SERVER", "TOKEN"):
        monkeypatch.delenv(f"TUNEFARM_{name}", raising=False)
    monkeypatch.setenv("TUNEFARM_CONFIG", str(tmp_path / "no config.toml"))
    monkeypatch.chdir(tmp_path)
    made = DataFolder(tmp_path / "data")
    made.prepare()
    with closing(Database(made.database_url)) as database:
        database.migrate()
        with database.begin() as session:
            sha = models.add(session, blobs.put(session, b"onnx"), "net", 1.0).sha
            devices.put_class(session, DEVICE)
            for name in ("done", "waiting"):
                jobs.create(
                    session, name, JobRequest(sha, "net", {}, "native", Budget(10)), jobs.Submission(1.0)
                )
                jobs.set_device_class(session, name, DEVICE.key)
            jobs.set_artifacts(session, "done", tuned_sha=blobs.put(session, b"artifact"))
            jobs.set_end_to_end(session, "done", "tuned", [1e-3])
            jobs.advance(session, "done", UNFINISHED, JobState.DONE, 2.0)
            workers.register(session, WorkerSession("local", "s", WorkerState.READY, DEVICE), 3.0)
            tasks.put_workload(session, "w1", "{}")
            imports.add(session, [record("[]", 1e-3, source="import")], 3.0)
    return made


@pytest.mark.slow_lane(seconds=10)
def test_jobs_and_schedules_are_read_and_deleted_without_a_service(
    folder: DataFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)  # nothing is compiled

    def printed(command: str) -> str:
        assert run(app, [*shlex.split(command), "--data", str(folder.path)]) == ExitCode.OK
        return capsys.readouterr().out

    assert [job["id"] for job in json.loads(printed("jobs --json"))] == ["waiting", "done"]
    assert json.loads(printed("jobs don --json"))["tuned_latency_s"] == 1e-3
    printed("report done")
    assert "net" in Path("tunefarm-done.html").read_text()
    assert "no cost model was trained yet" in printed("model")
    assert f"reports 1 ms on {DEVICE.name}\n" in printed("best w1")
    assert "0 records of 0 workloads are in out" in printed("export --output out")
    assert f"1 imported records are deleted on {DEVICE.name}" in printed("delete-imported")
    assert json.loads(printed("cancel wait --json"))["state"] == "cancelled"
    printed("delete done")
    assert [job["id"] for job in json.loads(printed("jobs --json"))] == ["waiting"]
    assert folder.running() is None


def test_a_data_folder_in_use_is_reported(folder: DataFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with folder.locked():
        assert run(app, ["jobs", "--data", str(folder.path)]) == ExitCode.LOCAL
    assert "is in use already: wait until it has stopped" in capsys.readouterr().err


def test_live_tables_and_watch_need_a_running_service(
    folder: DataFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("jobs --live", "watch waiting"):
        code = run(app, [*command.split(), "--data", str(folder.path)])
        assert code == ExitCode.UNREACHABLE
        assert "start one with `tunefarm up`" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["best w1", "show w1", "export --output out", "delete-imported"])
def test_nothing_is_started_to_look_up_schedules_where_there_are_none(
    command: str, folder: DataFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack, "start", lambda config: pytest.fail("a stack was started"))
    assert run(app, [*command.split(), "--data", "elsewhere"]) == ExitCode.UNREACHABLE
    assert "no service is running here" in capsys.readouterr().err


def test_only_the_server_is_started(folder: DataFolder) -> None:
    with stack.start(stack.StackConfig(folder.path, server_alone=True)) as started:
        assert set(started.supervisor.states()) == {"server"}
