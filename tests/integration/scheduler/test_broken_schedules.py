"""If some schedules of a model are broken, the other subgraphs are published tuned (real compiler)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import update
from tvm.s_tir import Schedule

import core.trace
from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.lowering.trace import trace_of
from compiler.packaging.artifact import unpack
from compiler.workload import from_json
from core.job import Budget, JobState
from core.measurement import Measurement, Outcome
from records.fleet.leases import StoredLease
from records.fleet.results import LeaseResult
from records.jobs import events, jobs, models, tasks
from records.jobs.jobs import Job, JobRequest
from records.schedules import imports
from records.schedules.schedules import Record
from records.storage import blobs
from records.storage.database import Database
from records.storage.tables import RecordRow
from scheduler.steps import selection
from tests.integration.scheduler import local_job
from tests.integration.scheduler.local_job import NOW, Device, finish
from tests.onnx_models import residual
from tests.services import sqlite

CONVOLUTION, CLASSIFIER = "conv2d_add_add_relu", "matmul_add"
Breaks = Callable[[Schedule], None]


def binds_a_thread(schedule: Schedule) -> None:
    """A schedule that applies but can't be compiled, because no CPU has such threads."""
    schedule.bind(schedule.get_loops(_blocks(schedule)[-1])[0], "threadIdx.x")


def rounds_to_integers(schedule: Schedule) -> None:
    """A schedule that compiles but computes something else."""
    block = _blocks(schedule)[-1]
    schedule.cache_write(block, 0, "global")
    schedule.unsafe_set_dtype(block, 0, "int8")


def _blocks(schedule: Schedule) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


@pytest.fixture(autouse=True)
def lets_types_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept one more instruction, here and in the compiler's children. No trace of the accepted instructions
    is known to compute something else."""
    code = (
        "import core.trace as t; schema = t._Instruction((t._block,), (t._integer, t._name));"
        "t.INSTRUCTIONS = {**t.INSTRUCTIONS, 'UnsafeSetDType': schema}"
    )
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.syspath_prepend(str(tmp_path))
    schema = core.trace._Instruction((core.trace._block,), (core.trace._integer, core.trace._name))
    known = {**core.trace.INSTRUCTIONS, "UnsafeSetDType": schema}
    monkeypatch.setattr(core.trace, "INSTRUCTIONS", known)


class SlowUntuned(Device):
    """A device that always times the untuned model as slow. Without this, chance would decide."""

    def _measure(self, lease: StoredLease) -> list[LeaseResult]:
        untuned = {run.id for run in lease.module_runs if run.kind == "untuned"}
        results = super()._measure(lease)
        return [_slowed(result) if result.module_run_id in untuned else result for result in results]


def _slowed(result: LeaseResult) -> LeaseResult:
    assert isinstance(result.measurement, Measurement)
    secs = [secs + 1.0 for secs in result.measurement.run_s]
    return replace(result, measurement=replace(result.measurement, run_s=tuple(secs)))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(sqlite(tmp_path / "tunefarm.db"))
    yield found
    found.close()


@pytest.mark.slow_lane(seconds=16)
@pytest.mark.parametrize(
    ("subgraph", "breaks", "reason"),
    [
        (CONVOLUTION, binds_a_thread, "not implemented"),
        (CLASSIFIER, rounds_to_integers, "wrong_result: not what the untuned model computes"),
    ],
)
def test_a_schedule_that_breaks_the_model_is_left_out_alone(
    database: Database, subgraph: str, breaks: Breaks, reason: str
) -> None:
    device = SlowUntuned(database)
    _know(database, device, {subgraph: breaks})
    _submit(database)
    finish(database, device)
    _check(database, subgraph, reason)


@pytest.mark.slow_lane(seconds=16)
def test_the_search_continues_after_a_scheduler_was_killed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work_until(reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not reached():
            assert time.monotonic() < deadline, _job(database).message
            monkeypatch.setattr(local_job, "NOW", time.time())
            if not device.work(uuid4().hex):
                time.sleep(0.05)

    # The scheduler's clock is the real one, and it waits for no worker that was seen long ago.
    monkeypatch.setattr(local_job, "NOW", time.time())
    device = SlowUntuned(database)
    _know(database, device, {CLASSIFIER: rounds_to_integers})
    _submit(database)
    with _scheduler(database, tmp_path):
        work_until(lambda: _assemblies(database) == 2)
    assert not _job(database).state.finished
    with _scheduler(database, tmp_path):
        work_until(lambda: _job(database).state.finished)
    _check(database, CLASSIFIER, "wrong_result")


def _check(database: Database, subgraph: str, reason: str) -> None:
    """Assert that all other subgraphs are published tuned, and this one isn't for this reason."""
    job = _job(database)
    assert (job.state, job.error) == (JobState.DONE, None)
    assert job.artifact_sha is not None
    with database.begin() as session:
        _, manifest = unpack(blobs.get(session, job.artifact_sha))
    entries = {entry.name.split()[0]: entry for entry in manifest.tasks}
    broken = entries.pop(subgraph)
    assert (broken.trace, broken.source) == (None, "fallback")
    assert broken.reason.startswith(reason)
    assert {"conv2d_add_relu", CONVOLUTION, CLASSIFIER} - {subgraph} <= {
        name for name, entry in entries.items() if entry.trace is not None
    }
    assert not any(entry.reason for entry in entries.values())
    assert (
        f"1 of {len(manifest.tasks)} subgraphs runs the fallback schedule: {broken.name}: {reason}"
        in job.message
    )


def _know(database: Database, device: Device, broken: Mapping[str, Breaks]) -> None:
    """Store a broken schedule for some subgraphs, faster than all others that are known."""
    fingerprint = device.fingerprint
    for task in extract_tasks(fuse(read_onnx(residual(), {}), fingerprint.target)):
        breaks = broken.get(task.name.split()[0])
        if breaks is None:
            continue
        schedule = Schedule(from_json(task.module_json), debug_mask="none")
        breaks(schedule)
        trace = trace_of(schedule)
        program = {"sketch": "of an older search", "values": []}
        record = Record(
            task.workload_hash, fingerprint.key, trace, program, 1e-9, (1e-9,), Outcome.OK,
            fingerprint.target, "trial", NOW,
        )  # fmt: skip
        with database.begin() as session:
            tasks.put_workload(session, task.workload_hash, task.module_json, hashed_here=True)
            imports.add(session, [record], NOW)
            session.execute(update(RecordRow).values(source="trial"))


def _submit(database: Database) -> None:
    """Submit a job that tries a best guess of the other subgraphs, without variants of the broken ones."""
    with database.begin() as session:
        sha = blobs.put(session, residual())
        models.add(session, sha, "residual", NOW)
        request = JobRequest(sha, "residual", {}, "native", Budget(0), seed=0, exact=True)
        jobs.create(session, "job", request, jobs.Submission(NOW))


def _job(database: Database) -> Job:
    with database.begin() as session:
        return jobs.get(session, "job")


def _assemblies(database: Database) -> int:
    with database.begin() as session:
        return [event.kind for event in events.since(session, "job", 0, 1000)].count(selection.ASSEMBLED)


@contextmanager
def _scheduler(database: Database, folder: Path) -> Iterator[None]:
    """A process, killed in the end."""
    environment = {
        "TUNEFARM_DATABASE_URL": f"sqlite:///{folder / 'tunefarm.db'}",
        "TUNEFARM_BROKER": str(folder / "broker"),
        "TUNEFARM_SWEEP_INTERVAL_S": "0.2",
        "TUNEFARM_CLAIM_TTL_S": "1",
    }
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "scheduler"],
            env=os.environ | environment,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
