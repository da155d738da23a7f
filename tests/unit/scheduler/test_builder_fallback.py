"""Devices build themselves if builders build nothing, even if these do other things."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update

from core.job import Build, JobState
from core.worker import WorkerState
from records.fleet import leases, workers
from records.fleet.building import Builder
from records.fleet.workers import WorkerSession
from records.storage.tables import WorkerRow
from scheduler.upkeep.builder_fallback import PATIENCE_S
from tests.devices import DEVICE
from tests.marks import slow_lane_except
from tests.unit.scheduler.farm import Farm

LARGE = Builder(("x86_64",), "x86_64", 64, DEVICE.toolchain)
AuditEntry = Callable[[Farm, int], None]


def report_ready(farm: Farm, name: str = "builder", session_id: str = "s") -> None:
    with farm.database.begin() as session:
        workers.register(session, WorkerSession(name, session_id, WorkerState.READY, builder=LARGE), farm.now)


def only_call(farm: Farm, turn: int) -> None:
    report_ready(farm)


def hold(farm: Farm, turn: int) -> None:
    """Take a lease once, and renew it."""
    report_ready(farm)
    with farm.database.begin() as session:
        if leases.current(session, "builder", "s", farm.now) is None:
            leases.acquire_lease(
                session, f"held {turn}", WorkerSession("builder", "s", WorkerState.READY), 8, farm.now, 30.0
            )
        held = leases.current(session, "builder", "s", farm.now)
        if held is not None:
            leases.renew(session, held.id, "s", farm.now, 30.0)


def come_and_go(farm: Farm, turn: int) -> None:
    """Lease everything and return it, with another name each time."""
    report_ready(farm, f"builder {turn}")
    with farm.database.begin() as session:
        leases.acquire_lease(
            session,
            f"held {turn}",
            WorkerSession(f"builder {turn}", "s", WorkerState.READY),
            8,
            farm.now,
            30.0,
        )
        if turn:
            leases.give_back(session, f"builder {turn - 1}", "s", farm.now)


@pytest.mark.parametrize("act", slow_lane_except([only_call, hold, come_and_go], hold))
def test_builders_that_build_nothing_delay_a_job_by_minutes_only(farm: Farm, act: AuditEntry) -> None:
    farm.plug_in()
    farm.submit()
    began = farm.now
    for turn in range(400):
        act(farm, turn)
        farm.tick()
        if farm.job().state.finished:
            break
    job = farm.job()
    assert (job.state, job.trials_done, job.request.build) == (JobState.DONE, 8, Build.DEVICE)
    assert {trial.attempts for trial in farm.trials()} == {0}
    assert farm.now - began < 2 * PATIENCE_S


def test_working_builders_are_not_replaced(farm: Farm) -> None:
    """A little now and then is enough."""
    farm.plug_in()
    farm.submit()
    for turn in range(80):
        report_ready(farm)
        if turn % 20 == 19:
            with farm.database.begin() as session:
                session.execute(update(WorkerRow).values(trials_done=WorkerRow.trials_done + 1))
        farm.sweep()
        farm.now += 5
    assert farm.job().request.build is Build.AUTO


def test_after_a_clock_change_the_wait_starts_again(farm: Farm) -> None:
    farm.plug_in()
    farm.submit()
    report_ready(farm)
    farm.sweep()
    farm.now -= 3600
    for _ in range(int(PATIENCE_S // 5) - 1):
        report_ready(farm)
        farm.sweep()
        farm.now += 5
    assert farm.job().request.build is Build.AUTO
