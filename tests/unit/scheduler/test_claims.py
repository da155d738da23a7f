"""A step keeps its claim until it ends, and no step delays a sweep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.job import JobState
from core.worker import WorkerState
from records.fleet import leases
from records.fleet.workers import WorkerSession
from records.jobs import jobs, trials
from records.storage.tables import JobRow
from scheduler.app import make_app
from scheduler.context import Context
from scheduler.main import _sweep_until
from scheduler.steps import claims, drive
from scheduler.steps.long_steps import LONG_STEPS, LongStep
from scheduler.upkeep.outlines import OutlineReader
from scheduler.upkeep.sweep import Sweeper
from tests.unit.scheduler.farm import DEVICE, Farm

TTL_S = 0.4


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def context(farm: Farm, name: str) -> Context:
    settings = farm.settings.model_copy(update={"claim_ttl_s": TTL_S})
    wake = lambda step, job_id: None  # noqa: E731
    return Context(settings, farm.database, time.time, name, wake, children=farm.compiler.children)


def held_until(farm: Farm) -> float:
    with farm.database.begin() as session:
        row = session.get(JobRow, "job")
        assert row is not None
        return row.held_until or 0.0


def test_a_step_that_takes_longer_than_a_claim_holds_is_taken_once(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    may_end = threading.Event()

    def long_step(context: Context, job: jobs.Job) -> None:
        taken.append(context.scheduler_name)
        assert may_end.wait(30.0)

    step = drive.Step("intake", frozenset({JobState.QUEUED}), long_step)
    monkeypatch.setattr(drive, "STEPS", (step,))
    farm.submit()
    first = threading.Thread(target=drive.drive, args=(context(farm, "here"), "intake", "job"))
    first.start()
    try:
        wait_until(lambda: taken == ["here"])
        claimed_until = held_until(farm)
        wait_until(lambda: held_until(farm) > claimed_until + 2 * TTL_S)
        drive.drive(context(farm, "there"), "intake", "job")
        assert taken == ["here"]
    finally:
        may_end.set()
        first.join()
    assert held_until(farm) == 0.0
    drive.drive(context(farm, "there"), "intake", "job")
    assert taken == ["here", "there"]


@pytest.mark.parametrize("name", LONG_STEPS)
def test_a_long_step_delays_no_round_of_the_same_scheduler(
    farm: Farm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    taken: list[str] = []
    planned: list[str] = []
    may_end = threading.Event()

    def take_long(context: Context, job: jobs.Job) -> None:
        taken.append(job.id)
        assert may_end.wait(30.0)

    steps = (
        drive.Step(name, frozenset({JobState.QUEUED}), take_long),
        drive.Step("round", frozenset({JobState.TUNING}), lambda context, job: planned.append(job.id)),
    )
    monkeypatch.setattr(drive, "STEPS", steps)
    for job_id in ("slow", "ready"):
        farm.submit(job_id)
    with farm.database.begin() as session:
        jobs.advance(session, "ready", {JobState.QUEUED}, JobState.TUNING, farm.now)
    here = context(farm, "here")
    step = LongStep(here, name)
    try:
        step.start("slow")
        wait_until(lambda: taken == ["slow"])
        drive.drive(here, "round", "slow")
        drive.drive(here, "round", "ready")
        assert planned == ["ready"]
        drive.drive(context(farm, "there"), name, "slow")
        assert taken == ["slow"], "the step keeps its claim"
    finally:
        may_end.set()
        step.stop()
    assert taken == ["slow"]


def test_a_claim_that_another_scheduler_has_got_is_not_taken_back(
    farm: Farm, caplog: pytest.LogCaptureFixture
) -> None:
    farm.submit()
    with farm.database.begin() as session:
        assert jobs.claim_job(session, "job", "there", time.time(), 60.0)
    before = held_until(farm)
    with claims.renewed(context(farm, "here"), "job"):
        wait_until(lambda: "has passed to another scheduler" in caplog.text)
    assert held_until(farm) == before


def test_lost_devices_are_noticed_while_no_step_is_taken(farm: Farm, tmp_path: Path) -> None:
    """With no Celery worker at all, as while a step takes long."""
    farm.submit()
    farm.plug_in()
    farm.context.wake("intake", "job")
    farm.drain()
    with farm.database.begin() as session:
        worker = WorkerSession("worker", "session", WorkerState.READY, DEVICE)
        assert leases.acquire_lease(session, "lease", worker, 8, now=farm.now, ttl_s=1.0)
    farm.now += 5.0
    is_stopping = threading.Event()
    arguments = make_app(str(tmp_path)), Sweeper(farm.context, OutlineReader(farm.context)), 0.05, is_stopping
    sweeps = threading.Thread(target=_sweep_until, args=arguments)
    sweeps.start()

    def counts() -> trials.TrialCounts:
        with farm.database.begin() as session:
            return trials.counts(session, "job")

    try:
        wait_until(lambda: counts().leased == 0)
    finally:
        is_stopping.set()
        sweeps.join()
    assert counts().pending > 0
