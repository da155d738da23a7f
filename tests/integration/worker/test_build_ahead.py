"""An agent whose builder builds the next candidates while its measuring child measures."""

from __future__ import annotations

import asyncio
import hashlib
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from core.lease import Lease
from core.measurement import Measurement
from core.worker import DesiredState, WorkerState
from tests.integration.worker.agents import BRISK, in_state, with_fleet, working
from tests.integration.worker.executors import OWNER, SHARED
from tests.integration.worker.fake_fleet import LIMITS, FakeFleet
from worker.runner.executor import ChildConfig

PAIRS = replace(BRISK, build_together=2)
BUILDER = ChildConfig(2, "fault_runner:FaultRunner", user=OWNER, builds=True, gpu=True, writable=SHARED)
PLATFORMS = f"{platform.machine()} {platform.machine()}_cuda_13_0"


def offer_pairs(fleet: FakeFleet, gate: Path) -> Lease:
    """Offer two pairs of candidates. The first one measures until the third one is built."""
    fleet.workloads["gate"] = str(gate)
    limits = replace(LIMITS, run_timeout_s=20.0)
    return fleet.offer("measure wait_for_file", "ok", "build touch", "ok 2", workload="gate", limits=limits)


def errors(fleet: FakeFleet) -> list[str]:
    """Return the errors of the measured trials, in their order."""
    measured = [fleet.stored[trial_id].measurement for trial_id in sorted(fleet.stored)]
    return [one.error for one in measured if isinstance(one, Measurement)]


def test_the_next_batch_is_built_during_a_measurement(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        offer_pairs(fleet, tmp_path / "gate")
        async with working(fleet, PAIRS, builder=BUILDER, TVM_FAULT_PLATFORMS=PLATFORMS):
            await fleet.until(lambda: len(fleet.stored) == 4)
        assert fleet.outcomes() == ["ok"] * 4

    with_fleet(work)


def test_the_builders_libraries_are_measured() -> None:
    async def work(fleet: FakeFleet) -> None:
        traces = ["load library", "load library 2", "load library 3"]
        fleet.offer(*traces)
        async with working(fleet, PAIRS, builder=BUILDER, TVM_FAULT_PLATFORMS=PLATFORMS):
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert errors(fleet) == [f"library of {trace}" for trace in traces]

    with_fleet(work)


def test_a_failed_build_is_not_measured_and_does_not_affect_others() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("build refuse", "ok", "build segfault", "ok 2", "ok 3", "measure exit", "ok 4")
        config = replace(PAIRS, slots=8)
        async with working(fleet, config, builder=BUILDER, TVM_FAULT_PLATFORMS=PLATFORMS):
            await fleet.until(lambda: len(fleet.stored) == 7)
        expected = ["build_error", "ok", "build_error", "ok", "ok", "run_error", "ok"]
        assert fleet.outcomes() == expected

    with_fleet(work)


def test_a_library_that_another_worker_has_built_is_not_built_again() -> None:
    async def work(fleet: FakeFleet) -> None:
        data = b"from afar"
        sha = hashlib.sha256(data).hexdigest()
        fleet.blobs[sha] = data
        fleet.offer("load library", library_sha=sha)
        async with working(fleet, PAIRS, builder=BUILDER, TVM_FAULT_PLATFORMS=PLATFORMS):
            await fleet.until(lambda: len(fleet.stored) == 1)
        assert errors(fleet) == ["from afar"]

    with_fleet(work)


def test_an_evicted_worker_stops_building_too(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        note = tmp_path / "building"
        fleet.workloads["note"] = str(note)
        fleet.offer("measure hang", "ok", "build hang", workload="note")
        async with working(fleet, PAIRS, builder=BUILDER, TVM_FAULT_PLATFORMS=PLATFORMS) as worker:
            while not note.exists():
                await asyncio.sleep(0.01)
            fleet.desired_state = DesiredState.EVICTED
            await fleet.until(lambda: in_state(fleet, WorkerState.DRAINING))
            while worker.executor.child_pid is not None:
                await asyncio.sleep(0.01)
            fleet.leases.clear()
            fleet.offer("ok", "ok 2", "ok 3")
            fleet.desired_state = DesiredState.WORK
            await fleet.until(lambda: len(fleet.stored) == 3)

    with_fleet(work)


@pytest.mark.parametrize("platforms", [platform.machine(), "", "riscv64_cuda_13_0"])
def test_a_machine_without_a_linker_for_its_gpu_builds_in_the_measuring_child(platforms: str) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("load library", "ok", "build refuse")
        async with working(fleet, PAIRS, builder=BUILDER, TVM_FAULT_PLATFORMS=platforms):
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert fleet.outcomes() == ["ok", "ok", "build_error"], "no library was loaded"

    with_fleet(work)
