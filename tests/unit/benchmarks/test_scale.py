"""Figures of simulated workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.scale import Load, ScaleError, figures_of, planned_figures
from benchmarks.simulated_workers import (
    OURS,
    CountingWindow,
    FleetStats,
    SimulatedWorker,
    results_for,
    simulated_device,
)
from proto import fleet_pb2 as pb

ALL = Load(workers=1000, seconds=10.0, warm_up_s=0.0, trial_s=0.45)


def seen(stored: int, slowest_s: float) -> FleetStats:
    used = {"server 1": 8.0, "PostgreSQL": 5.0, "Redis": 0.1, OURS: 1.0}
    return FleetStats(10.0, stored, stored, [0.01] * 197 + [slowest_s] * 3, cpu_s=used)


def test_the_whole_fleet_and_a_single_worker_are_compared_with_the_aims() -> None:
    late = replace(seen(12_000, 0.03), late=7)
    two = replace(seen(30_000, 0.08), late=2)
    found = figures_of(ALL, seen(25_000, 0.15), seen(4_000, 0.012), late, two)
    assert [(one.value, one.unit, one.reached) for one in found] == [
        (2500.0, "/s", True),
        (pytest.approx(150.0), "ms", False),
        (0.0, "", None),
        (pytest.approx(30.0), "ms", None),
        (pytest.approx(10.0), "ms", None),
        (9.0, "", None),
        (0.8, "", None),
        (0.5, "", None),
        (0.01, "", None),
        (0.1, "", None),
        (3000.0, "/s", None),
        (pytest.approx(80.0), "ms", None),
    ]
    assert (found[0].note, found[1].note) == ("one worker: 400 /s", "one worker: 12 ms")
    assert "2222 trials offered a second" in found[1].name
    assert "1200 trials stored a second" in found[3].name
    assert found[-2].note == "one server: 2500 /s"


def test_too_few_leases_are_no_measurement() -> None:
    few = FleetStats(10.0, 100, 100, [0.01] * 50)
    with pytest.raises(ScaleError, match="only 50 leases"):
        figures_of(ALL, few, few, few, few)


@pytest.mark.parametrize(
    ("workers", "trial_s", "lasts_s"),
    [(100, 0.45, 40.0), (100, 0.045, 15.0), (1000, 0.45, 15.0), (1, 0.0, 15.0)],
)
def test_a_measurement_lasts_for_twice_the_leases_that_it_needs(
    workers: int, trial_s: float, lasts_s: float
) -> None:
    assert Load(workers, seconds=15.0, warm_up_s=0.0, trial_s=trial_s).lasts_s == pytest.approx(lasts_s)


@pytest.mark.parametrize(
    ("stored", "used", "limit"),
    [
        (400, {"server 1": 6.0, "scheduler 1": 8.0, OURS: 5.0}, "the machine's 2 cores"),
        (400, {"server 1": 1.0, "scheduler 1": 9.5}, "planning: a scheduler takes one step at a time"),
        (1760, {"server 1": 3.0, "scheduler 1": 5.0}, "the devices"),
        (400, {"server 1": 1.0, "scheduler 1": 5.0}, "waiting, for one another or the disk"),
    ],
)
def test_the_limit_of_planned_trials_is_reported(stored: int, used: dict[str, float], limit: str) -> None:
    load = Load(workers=80, seconds=10.0, warm_up_s=0.0, trial_s=0.45, servers=1, schedulers=1)
    seen = FleetStats(10.0, stored, stored, [0.01] * 200, [2.0] * 100, used)
    first, lease, wait, waiting, *cores = planned_figures(load, seen)
    assert (first.name, first.value) == ("1 servers, 1 schedulers: trials stored", stored / 10)
    assert first.note == f"limited by {limit}"
    assert [one.value for one in (lease, wait, waiting)] == pytest.approx([10.0, 2000.0, 0.25])
    assert sum(one.value for one in cores) == pytest.approx(sum(used.values()) / 10)


def test_devices_that_always_wait_have_no_latency_of_leases() -> None:
    load = Load(workers=80, seconds=10.0, warm_up_s=0.0, trial_s=0.45, servers=1, schedulers=1)
    found = planned_figures(load, FleetStats(10.0, 100, 100, [0.01] * 50, [2.0], {"server 1": 1.0}))
    assert [one.value for one in found[:3]] == pytest.approx([10.0, 2000.0, 0.0025])


def test_every_module_run_of_a_lease_gets_a_result() -> None:
    lease = pb.Lease(id=pb.LeaseId(id="x", attempt=1), module_runs=[pb.ModuleRun(id=3)])
    assert [(one.number, one.module_run_id) for one in results_for(lease)] == [(1, 3)]


def test_every_candidate_of_a_lease_gets_a_result() -> None:
    lease = pb.Lease(id=pb.LeaseId(id="x", attempt=2), candidates=[pb.Candidate(trial_id=n) for n in (7, 9)])
    results = results_for(lease)
    assert [(one.number, one.trial_id, one.lease.attempt) for one in results] == [(1, 7, 2), (2, 9, 2)]
    assert results_for(pb.Lease()) == []


def test_a_worker_reports_while_it_measures_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, list[int]]] = []

    async def call(
        _self: SimulatedWorker, results: Sequence[pb.Result], held: pb.LeaseId
    ) -> pb.SynchronizeResponse:
        told.append((held.id, [one.trial_id for one in results]))
        return pb.SynchronizeResponse(
            lease=pb.Lease(id=held), acknowledged=[one.number for one in results], call_again_after_s=0.02
        )

    async def run() -> tuple[list[int], int]:
        worker, total = SimulatedWorker("nowhere:1", 1, simulated_device(1), trial_s=0.01), FleetStats(1.0)
        lease = pb.Lease(id=pb.LeaseId(id="x"), candidates=[pb.Candidate(trial_id=n) for n in range(8)])
        answer = pb.SynchronizeResponse(lease=lease, call_again_after_s=0.02)
        left = await worker._measure(answer, CountingWindow(1, 1.0), total)
        return [one.trial_id for one in left], total.acknowledged

    monkeypatch.setattr(SimulatedWorker, "_call", call)
    left, acknowledged = asyncio.run(run())
    assert told
    assert {lease for lease, _ in told} == {"x"}
    assert [number for _, numbers in told for number in numbers] + left == list(range(8))
    assert acknowledged + len(left) == 8


def test_a_wait_for_a_plan_is_no_slow_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = pb.Lease(id=pb.LeaseId(id="x"), candidates=[pb.Candidate(trial_id=1)])
    answers = iter([lease, None, None, lease, lease, None])
    clock, total = CountingWindow(1, 1.0), FleetStats(1.0)

    async def call(*_: object, slots: int = 0) -> pb.SynchronizeResponse:
        if (given := next(answers)) is None:
            await asyncio.sleep(0.02)
        return pb.SynchronizeResponse(lease=given)

    async def measure(_self: SimulatedWorker, answer: pb.SynchronizeResponse, *_: object) -> list[pb.Result]:
        monkeypatch.setattr(clock, "counts", lambda _: True)
        if len(total.lease_s) == 1:
            monkeypatch.setattr(clock, "is_over", lambda _: True)
        return results_for(answer.lease)

    monkeypatch.setattr(SimulatedWorker, "_call", call)
    monkeypatch.setattr(SimulatedWorker, "_measure", measure)

    async def run() -> None:
        await SimulatedWorker("nowhere:1", 1, simulated_device(1), trial_s=0.01).work(clock, total)

    asyncio.run(run())
    assert (len(total.lease_s), len(total.wait_s)) == (1, 1)


def test_simulated_device_classes_are_different() -> None:
    assert len({simulated_device(number).key for number in range(50)}) == 50
