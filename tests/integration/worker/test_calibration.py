"""Calibration by a real agent with a real child: when, how often, and what is reported and cached."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from core.worker import WorkerState
from tests.devices import DEVICE
from tests.integration.worker.agents import in_state, states, with_fleet, working
from tests.integration.worker.fake_fleet import FakeFleet
from worker.agent.profile_cache import ProfileCache


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Return a file to which each calibration adds a character."""
    file = tmp_path / "calibrations"
    file.touch()
    return file


def hertz(fleet: FakeFleet) -> list[float]:
    """Return the clock rates in the reported profiles, without repetitions."""
    sent = [r.device.profile.hertz for r in fleet.reports if r.device is not None and r.device.profile]
    return list(dict.fromkeys(sent))


def test_a_worker_calibrates_before_it_is_ready_and_reports_once(tmp_path: Path, notes: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        kept = ProfileCache(tmp_path / "profiles")
        async with working(fleet, profiles=kept, TVM_FAULT_CALIBRATIONS=str(notes)):
            await fleet.until(lambda: len(fleet.reports) >= 4 and in_state(fleet, WorkerState.READY))
        assert hertz(fleet) == [1e9]
        assert states(fleet)[:2] == [WorkerState.PROBING, WorkerState.READY]
        assert sum(report.calibrated for report in fleet.reports) == 1
        assert fleet.reports[-1].device == DEVICE

    with_fleet(work)


def test_a_new_session_uses_the_cached_profile(tmp_path: Path, notes: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        for session in ("first", "second"):
            kept = ProfileCache(tmp_path / "profiles")
            async with working(fleet, session=session, profiles=kept, TVM_FAULT_CALIBRATIONS=str(notes)):

                def is_ready(session: str = session) -> bool:
                    return in_state(fleet, WorkerState.READY) and fleet.reports[-1].session_id == session

                await fleet.until(is_ready)
        assert notes.read_text() == "."
        assert hertz(fleet) == [1e9]
        assert not any(report.calibrated for report in fleet.reports if report.session_id == "second")

    with_fleet(work)


def test_a_requested_calibration_runs_after_the_lease(tmp_path: Path, notes: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        kept = ProfileCache(tmp_path / "profiles")
        fleet.workloads["gate"] = str(tmp_path / "gate")
        lease = fleet.offer("ok", "wait_for_file", workload="gate")
        async with working(fleet, profiles=kept, TVM_FAULT_CALIBRATIONS=str(notes)):
            await fleet.until(lambda: len(fleet.stored) == 1)
            fleet.calibrate = True
            asked = len(fleet.reports)
            await fleet.until(lambda: len(fleet.reports) >= asked + 3)
            assert fleet.reports[-1].held == lease.id, "it finishes what it holds"
            (tmp_path / "gate").touch()
            await fleet.until(lambda: not fleet.calibrate and in_state(fleet, WorkerState.READY))
            told = len(fleet.reports)
            fleet.offer("ok")
            await fleet.until(lambda: len(fleet.stored) == 3 and len(fleet.reports) >= told + 3)
        assert notes.read_text() == "..", "once for all the answers that asked for it"
        assert hertz(fleet) == [1e9, 1e9 + 1]
        assert WorkerState.PROBING in states(fleet)[1:]
        assert fleet.outcomes() == ["ok"] * 3
        found = ProfileCache(tmp_path / "profiles").get(DEVICE)
        assert found is not None
        assert found.hertz == 1e9 + 1

    with_fleet(work)


def test_a_child_that_dies_leaves_the_device_without_a_profile(
    tmp_path: Path, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(fleet: FakeFleet) -> None:
        kept = ProfileCache(tmp_path / "profiles")
        notes.write_text("die")
        fleet.offer("ok")
        fleet.calibrate = True
        async with working(fleet, profiles=kept, TVM_FAULT_CALIBRATIONS=str(notes)):
            await fleet.until(lambda: len(fleet.stored) == 1 and in_state(fleet, WorkerState.READY))
        assert hertz(fleet) == []
        assert not fleet.calibrate, "what can't be measured isn't asked for again and again"
        assert kept.get(DEVICE) is None

    with caplog.at_level(logging.ERROR, logger="worker"):
        with_fleet(work)
    (said,) = [record.message for record in caplog.records if "can't be calibrated" in record.message]
    assert "SIGILL" in said


def test_a_dead_child_is_replaced_before_calibration(tmp_path: Path, notes: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        kept = ProfileCache(tmp_path / "profiles")
        async with working(fleet, profiles=kept, TVM_FAULT_CALIBRATIONS=str(notes)) as worker:
            await fleet.until(lambda: in_state(fleet, WorkerState.READY))
            await worker.executor.close()
            fleet.calibrate = True
            await fleet.until(lambda: not fleet.calibrate and in_state(fleet, WorkerState.READY))
        assert hertz(fleet) == [1e9, 1e9 + 1]

    with_fleet(work)
