"""Finished jobs are recorded with what each of their trials measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import recording
from benchmarks.results.recordings import RECORDINGS
from tests.unit.scheduler.farm import CONV, MATMUL, Farm


def test_a_finished_job_is_recorded(farm: Farm, database_file: Path, tmp_path: Path) -> None:
    farm.submit(trials=20)
    farm.submit("unfinished", trials=20)
    farm.plug_in()
    job = farm.finish()
    file = tmp_path / "recording.json"
    assert recording.main([str(database_file), "--json", str(file)]) == 0
    [found] = RECORDINGS.read(file)
    assert found.network == "net"
    assert job.finished_at is not None
    assert job.started_at is not None
    whole_s = found.importing_s + found.search_s + found.publishing_s
    assert whole_s == pytest.approx(job.finished_at - job.started_at)
    tasks = {task.workload: task for task in found.tasks}
    assert tasks.keys() == {MATMUL.workload_hash, CONV.workload_hash}
    assert (tasks[MATMUL.workload_hash].weight, tasks[CONV.workload_hash].base_workload) == (
        3,
        CONV.workload_hash,
    )
    assert sum(len(task.seconds) for task in found.tasks) == len(found.trials) == job.trials_done == 20
    assert [trial.at_s for trial in found.trials] == sorted(trial.at_s for trial in found.trials)
    for index, task in enumerate(found.tasks):
        made = [trial.latency_s for trial in found.trials if trial.task == index]
        assert len(made) == len(task.seconds)
        assert {secs for secs in task.seconds if secs} <= {secs for secs in made if secs}
    [figure] = json.loads(file.read_text())["figures"]
    assert (figure["name"], figure["value"]) == ("net: trials of 2 tasks", 20.0)


def test_a_database_without_finished_jobs_is_refused(
    farm: Farm, database_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    farm.submit()
    for file, why in (
        (database_file, "no job with trials is done"),
        (tmp_path / "none.db", "there is no database"),
    ):
        assert recording.main([str(file), "--json", str(tmp_path / "x.json")]) == 1
        assert why in capsys.readouterr().err
