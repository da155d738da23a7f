"""How fast the devices of a class are together, and which trials they can lease."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from core.job import Build
from core.worker import LOST_AFTER_S, WorkerState
from records.fleet import building, workers
from records.fleet.building import Builder
from records.fleet.workers import Capacity, WorkerSession
from records.jobs import jobs
from records.storage.tables import WorkerRow
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, make_job

NOW = 1000.0
BUILDER = Builder(("x86_64",), "x86_64", cores=64, toolchain=DEVICE.toolchain)


def _register(session: Session, name: str, trial_s: float | None = None, seen_at: float = NOW) -> None:
    workers.register(session, WorkerSession(name, "session", WorkerState.READY, DEVICE), seen_at)
    session.execute(update(WorkerRow).where(WorkerRow.id == name).values(trial_s=trial_s))


def _capacity(session: Session) -> Capacity:
    return workers.capacity(session, DEVICE.key, NOW)


def test_no_devices_measure_nothing(farm: Farm) -> None:
    assert _capacity(farm.session) == (0, 0.0)


def test_a_device_of_unknown_speed_counts_as_the_average(farm: Farm) -> None:
    _register(farm.session, "new")
    assert _capacity(farm.session) == (1, 0.0)
    _register(farm.session, "fast", trial_s=0.25)
    _register(farm.session, "slow", trial_s=0.5)
    assert _capacity(farm.session) == (3, 9.0)


def test_devices_that_get_no_trials_of_anybody_do_not_count(farm: Farm) -> None:
    _register(farm.session, "there", trial_s=0.5)
    _register(farm.session, "lost", trial_s=0.5, seen_at=NOW - LOST_AFTER_S)
    _register(farm.session, "reserved", trial_s=0.5)
    farm.session.execute(update(WorkerRow).where(WorkerRow.id == "reserved").values(reserved_until=NOW + 60))
    workers.register(farm.session, WorkerSession("probing", "session", WorkerState.PROBING), NOW)
    assert _capacity(farm.session) == (1, 2.0)


@pytest.mark.parametrize(
    ("build", "waits"), [(Build.DEVICE, False), (Build.AUTO, True), (Build.BUILDER, True)]
)
def test_devices_wait_for_builders_that_suit_the_job(session: Session, build: Build, waits: bool) -> None:
    make_job(session, "job", replace(DEVICE, cores=2), build=build)
    assert building.waits_for_builders(session, "job", NOW) is (build is Build.BUILDER)
    workers.register(session, WorkerSession("builder", "session", WorkerState.READY, builder=BUILDER), NOW)
    assert building.waits_for_builders(session, "job", NOW) is waits
    assert building.waits_for_builders(session, "job", NOW + LOST_AFTER_S) is (build is Build.BUILDER)


def test_open_trials_wait_or_are_leased(farm: Farm) -> None:
    assert jobs.count_open(farm.session, [farm.job_id]) == (0, 0)
    farm.issue("a", "b", "c")
    farm.take("lease", limit=2)
    found = jobs.count_open(farm.session, [farm.job_id, "another"])
    assert (found, found.total) == ((1, 2), 3)
