"""A real agent that is drained, resumed and evicted."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from core.worker import DesiredState, WorkerState
from tests.integration.worker.agents import BRISK, in_state, with_fleet, working
from tests.integration.worker.fake_fleet import FakeFleet
from worker.agent.agent import UpdateRequested


def test_a_drained_worker_finishes_its_lease_and_takes_no_other(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["gate"] = str(tmp_path / "gate")
        first = fleet.offer("ok", "wait_for_file", "ok", workload="gate")
        fleet.offer("ok")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 1)
            fleet.desired_state = DesiredState.DRAIN
            await fleet.until(lambda: in_state(fleet, WorkerState.DRAINING))
            assert fleet.reports[-1].held == first.id
            (tmp_path / "gate").touch()
            await fleet.until(lambda: len(fleet.stored) == 3)
            drained = len(fleet.reports)
            await fleet.until(lambda: len(fleet.reports) >= drained + 3)
            assert [report.held for report in fleet.reports[-2:]] == [None, None]
            assert {report.slots for report in fleet.reports[drained:]} == {0}
            fleet.desired_state = DesiredState.WORK
            await fleet.until(lambda: len(fleet.stored) == 4)
        assert fleet.outcomes() == ["ok"] * 4

    with_fleet(work)


def test_draining_survives_the_server_and_a_new_session(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok")
        fleet.desired_state = DesiredState.DRAIN
        async with working(fleet):
            await fleet.until(lambda: in_state(fleet, WorkerState.DRAINING))
            await fleet.stop()
            await fleet.start()
            first = len(fleet.reports)
            await fleet.until(lambda: len(fleet.reports) >= first + 2)
            assert in_state(fleet, WorkerState.DRAINING)
        async with working(fleet, session="another"):
            await fleet.until(
                lambda: in_state(fleet, WorkerState.DRAINING) and fleet.reports[-1].session_id == "another"
            )
            assert fleet.stored == {}
            fleet.desired_state = DesiredState.WORK
            await fleet.until(lambda: fleet.outcomes() == ["ok"])

    with_fleet(work)


def test_an_evicted_worker_drops_its_lease_and_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["begun"] = str(tmp_path / "begun")
        fleet.offer("hang", workload="begun")
        async with working(fleet) as worker:
            await fleet.until(lambda: in_state(fleet, WorkerState.BUSY))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            fleet.desired_state = DesiredState.EVICTED
            await fleet.until(lambda: fleet.reports[-1].held is None)
            assert worker.executor.child_pid is None, "what it measured is gone"
            assert not worker.running.done()
            fleet.leases.clear()
            fleet.offer("ok")
            fleet.desired_state = DesiredState.WORK
            await fleet.until(lambda: fleet.outcomes() == ["ok"])
        assert {report.session_id for report in fleet.reports} == {"session"}

    with caplog.at_level(logging.INFO, logger="worker"):
        with_fleet(work)
    said = [record.message for record in caplog.records if "resume board" in record.message]
    assert len(said) == 1, "it says so once"


def test_a_worker_whose_name_is_evicted_keeps_trying_to_start(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.desired_state = DesiredState.EVICTED
        fleet.offer("ok")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.reports) >= 4)
            assert all(report.starting for report in fleet.reports)
            fleet.desired_state = DesiredState.WORK
            await fleet.until(lambda: fleet.outcomes() == ["ok"])

    with_fleet(work)


def test_a_worker_reports_the_progress_of_its_lease(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["gate"] = str(tmp_path / "gate")
        fleet.offer("ok", "build refuse", "wait_for_file", workload="gate")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 2)
            await fleet.until(lambda: fleet.reports[-1].vitals.candidates_done == 2)
            assert fleet.reports[-1].vitals.candidates == 3
            (tmp_path / "gate").touch()
            await fleet.until(lambda: len(fleet.stored) == 3 and in_state(fleet, WorkerState.READY))
        assert fleet.reports[-1].vitals.candidates is None

    with_fleet(work)


def test_a_worker_that_may_be_updated_finishes_its_lease_and_ends(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["gate"] = str(tmp_path / "gate")
        fleet.offer("wait_for_file", "ok", workload="gate")
        async with working(fleet, replace(BRISK, updates=True)) as worker:
            await fleet.until(lambda: in_state(fleet, WorkerState.BUSY))
            fleet.desired_state = DesiredState.UPDATE
            await fleet.until(lambda: in_state(fleet, WorkerState.DRAINING))
            (tmp_path / "gate").touch()
            with pytest.raises(UpdateRequested):
                await worker.running
        assert fleet.outcomes() == ["ok", "ok"]

    with_fleet(work)


def test_a_worker_without_permission_waits_without_work() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.desired_state = DesiredState.UPDATE
        fleet.offer("ok")
        async with working(fleet) as worker:
            await fleet.until(lambda: in_state(fleet, WorkerState.DRAINING))
            drained = len(fleet.reports)
            await fleet.until(lambda: len(fleet.reports) >= drained + 3)
            assert not worker.running.done()
            fleet.desired_state = DesiredState.WORK
            await fleet.until(lambda: fleet.outcomes() == ["ok"])

    with_fleet(work)
