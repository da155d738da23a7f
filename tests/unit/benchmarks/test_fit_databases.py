"""The fit for GPUs on jobs' databases, with programs of two layers of MobileNet-V2 that an H200 measured."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from benchmarks.fit.__main__ import UNFITTED, main
from benchmarks.fit.databases import read_databases
from benchmarks.fit.fitting import estimated, pairs_right, predicted, train_on
from benchmarks.fit.programs import ProgramsError
from benchmarks.results import figures
from core.device import Device
from core.profile import Profile
from records.jobs import tasks
from records.storage.database import Database
from records.storage.tables import TrialRow
from search.cost.cost_parameters import FITTED
from tests.unit.records.farm import make_job, task_spec

MEASURED = json.loads((Path(__file__).parent / "h200_programs.json").read_text())


def put_network(session: Session, name: str, device: Device, measured: dict[str, Any]) -> None:
    """Store a job of a network with one task, and the trials of its programs."""
    job = make_job(session, name, device, model_name=name)
    tasks.put_workload(session, measured["workload"], measured["module"])
    tasks.add_tasks(session, name, [replace(task_spec(name, measured["workload"]), name=measured["name"])])
    [task] = [one for one in tasks.for_job(session, name) if one.workload_hash == measured["workload"]]
    for number, one in enumerate(measured["programs"]):
        row = {
            "job_id": job.job_id,
            "task_id": task.id,
            "workload_hash": task.workload_hash,
            "round": 0,
            "program": one["program"],
            "trace": str(number),
            "trace_sha": str(number),
            "predicted_s": 1.0,
            "state": "done",
            "attempts": 1,
            "outcome": "ok",
            "run_s": [one["latency_us"] / 1e6],
            "latency_s": one["latency_us"] / 1e6,
            "error": "",
            "created_at": 1.0,
            "finished_at": 2.0,
        }
        session.add(TrialRow(**row))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fit") / "tunefarm.db"
    device = Device.from_json(json.dumps(MEASURED["device"]))
    device = replace(device, profile=Profile.from_json(json.dumps(MEASURED["profile"])))
    with closing(Database(f"sqlite:///{file}")) as made:
        made.migrate()
        with made.begin() as session:
            for name, measured in zip(("first", "second"), MEASURED["tasks"], strict=True):
                put_network(session, name, device, measured)
    return file


def test_the_programs_of_every_network_are_read(database: Path) -> None:
    groups = {group.operator: group for group in read_databases([database])}
    assert set(groups) == {"first", "second"}
    for group, measured in zip((groups["first"], groups["second"]), MEASURED["tasks"], strict=True):
        runs: defaultdict[str, list[float]] = defaultdict(list)  # one program was measured twice
        for one in measured["programs"]:
            runs[json.dumps(one["program"])].append(one["latency_us"])
        assert sorted(group.seconds * 1e6) == pytest.approx(sorted(map(statistics.median, runs.values())))
        assert len(group.repeat_errors) == sum(len(one) > 1 for one in runs.values())
        assert sum(map(len, group.populations)) == len(group.seconds)
        assert group.device.profile is not None


def test_a_rate_that_no_gpu_reaches_is_assumed(database: Path) -> None:
    assert MEASURED["profile"]["l2_rate"] > 1000
    [device] = {group.device for group in read_databases([database])}
    assert device.speeds.l2_rate == 32.0
    assert "l2_rate" in device.speeds.derived
    assert device.speeds.hertz == MEASURED["profile"]["hertz"]


def test_four_of_five_pairs_are_estimated_in_the_order_that_was_measured(database: Path) -> None:
    right, total = pairs_right(read_databases([database]), partial(estimated, factors=FITTED))
    assert total > 100
    assert right >= 0.8 * total


def test_a_network_that_is_left_out_is_tested_with_factors_of_the_other(
    database: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fit.json"
    assert main(["--database", str(database), "--json", str(file)]) == 0
    names = {one.name for one in figures.read(file).figures}
    assert names == {
        f"{network}: pairs in the right order, {how}"
        for network in ("first", "second")
        for how in ("as it ships", "fitted to the others", "learned from 64 trials of the others")
    }
    assert FITTED != UNFITTED


def test_a_model_ranks_programs_that_it_learned_from_better_than_the_estimate(database: Path) -> None:
    groups = read_databases([database])
    count = sum(len(group.seconds) for group in groups)
    by_estimate, total = pairs_right(groups, partial(estimated, factors=UNFITTED))
    model = train_on(groups, UNFITTED, count, 0)
    learned, _ = pairs_right(groups, partial(predicted, factors=UNFITTED, model=model))
    assert by_estimate < learned <= total
    too_few = train_on(groups, UNFITTED, 15, 0)
    assert pairs_right(groups, partial(predicted, factors=UNFITTED, model=too_few)) == (by_estimate, total)


@pytest.mark.parametrize("content", [None, b"", b"no database"])
def test_an_invalid_database_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tunefarm.db"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ProgramsError, match=r"there is no database|can't be read|no program was measured"):
        read_databases([file])


def test_a_call_without_data_to_fit_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--json", str(tmp_path / "fit.json")]) == 2
    assert "give a file of programs, or --database" in capsys.readouterr().err
