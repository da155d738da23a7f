"""The agent with a real child and real gRPC to an in-memory service."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from core.lease import Limits, ModuleKind, ModuleRun
from core.measurement import Footprint, Measurement
from core.worker import Role, WorkerState
from system.energy import EnergyMeter
from tests.integration.worker.agents import (
    BRISK,
    in_state,
    states,
    with_fleet,
    working,
)
from tests.integration.worker.fake_fleet import FakeFleet
from worker.agent.agent import AgentConfig, Fenced
from worker.agent.service import WorkerRefused
from worker.runner.interleaved import ROUNDS

SAYS = "say whether it is compared"


def measurement_of(fleet: FakeFleet, trial_id: int) -> Measurement:
    measurement = fleet.stored[trial_id].measurement
    assert isinstance(measurement, Measurement)
    return measurement


def test_a_worker_probes_then_works_through_its_leases() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "build refuse", "ok")
        fleet.offer("ok")
        async with working(fleet, token="secret"):
            await fleet.until(lambda: len(fleet.stored) == 4 and in_state(fleet, WorkerState.READY))
        assert fleet.outcomes() == ["ok", "build_error", "ok", "ok"]
        assert states(fleet)[:2] == [WorkerState.PROBING, WorkerState.READY]
        assert fleet.fetched == ["w"], "a workload travels once"
        assert {metadata["authorization"] for metadata in fleet.metadata} == {"Bearer secret"}

    with_fleet(work)


def test_a_reports_fields_agree_with_its_state() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "ok")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 2)
        assert fleet.reports[0].starting
        assert not any(report.starting for report in fleet.reports[1:])
        for report in fleet.reports:
            assert (report.held is not None) == (report.state is WorkerState.BUSY)
            assert (report.slots == 4) == (report.state is WorkerState.READY)
            assert (report.device is None) == (report.state is WorkerState.PROBING)

    with_fleet(work)


def test_results_travel_while_the_lease_goes_on(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["gate"] = str(tmp_path / "gate")
        fleet.offer("ok", "ok", "wait_for_file", workload="gate")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 2)
            first = len(fleet.reports)
            # The child is busy all this time, and the lease is renewed nevertheless.
            await fleet.until(lambda: len(fleet.reports) >= first + 5)
            assert {report.held for report in fleet.reports[first:]} == {fleet.leases[0].id}
            (tmp_path / "gate").touch()
            await fleet.until(lambda: len(fleet.stored) == 3)

    with_fleet(work)


def test_a_fault_fails_only_the_faulty_candidate() -> None:
    async def work(fleet: FakeFleet) -> None:
        faults = ("run segfault", "ok", "build exit", "ok", "run wrong", "ok", "run allocate", "ok")
        fleet.offer(*faults)
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == len(faults))
        bad = ["run_error", "build_error", "wrong_result", "run_error"]
        assert fleet.outcomes() == [outcome for fault in bad for outcome in (fault, "ok")]
        children = [int(r.measurement.build_s) for r in fleet.stored.values() if r.measurement.run_s]
        assert len(set(children)) == 4, "each fault costs a child"

    with_fleet(work)


def test_a_fault_in_a_batch_fails_only_the_faulty_candidate() -> None:
    async def work(fleet: FakeFleet) -> None:
        faults = ("run segfault", "ok", "build exit", "ok 2", "run wrong", "ok 3", "build refuse", "ok 4")
        fleet.offer(*faults)
        async with working(fleet, replace(BRISK, build_together=8)):
            await fleet.until(lambda: len(fleet.stored) == len(faults))
        bad = ["run_error", "build_error", "wrong_result", "build_error"]
        assert fleet.outcomes() == [outcome for fault in bad for outcome in (fault, "ok")]

    with_fleet(work)


def test_candidates_are_timed_against_the_best_known_latency() -> None:
    async def work(fleet: FakeFleet) -> None:
        # Results before the failure count: every good candidate takes 1 ms.
        fleet.offer("best", "best 2", best_s=0.5)
        fleet.offer("best", "ok", "best 2")
        fleet.offer("ok", "best", best_s=0.0005)
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 7)
        errors = [measurement_of(fleet, number).error for number in range(1, 8)]
        assert errors == ["0.5", "0.5", "None", "", "0.001", "", "0.0005"]

    with_fleet(work)


def test_the_limits_of_the_lease_hold_unless_this_device_has_its_own() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("run hang", limits=Limits(run_timeout_s=0.2))
        config = AgentConfig(2, 0.05, override_limits=lambda limits: Limits(build_timeout_s=0.3))
        async with working(fleet):
            await fleet.until(lambda: fleet.outcomes() == ["run_timeout"])
        fleet.offer("build hang")
        async with working(fleet, config, session="other"):
            await fleet.until(lambda: fleet.outcomes() == ["run_timeout", "build_timeout"])

    with_fleet(work)


def test_results_wait_for_the_next_call_or_the_end_of_the_lease() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.again_s = 60.0
        fleet.offer("ok", "ok", "ok")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert [len(report.results) for report in fleet.reports if report.results] == [3]

    with_fleet(work)


def test_results_are_sent_until_they_are_acknowledged_and_then_no_more() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.acknowledging = False
        fleet.offer("ok", "ok")
        async with working(fleet):
            await fleet.until(lambda: [len(report.results) for report in fleet.reports[-3:]] == [2, 2, 2])
            fleet.acknowledging = True
            first = len(fleet.reports)
            await fleet.until(lambda: len(fleet.reports) >= first + 4)
            # The first report may have been sent before the service acknowledged.
            assert all(not report.results for report in fleet.reports[first + 2 :])

    with_fleet(work)


def test_a_lease_that_is_sent_again_is_not_measured_again() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.storing = False  # the service can't store results, so it sends the lease again
        fleet.offer("ok", "ok")
        async with working(fleet):
            await fleet.until(lambda: [len(report.results) for report in fleet.reports[-5:]] == [2] * 5)
            fleet.storing = True
            await fleet.until(lambda: len(fleet.stored) == 2)
        assert {result.number for report in fleet.reports for result in report.results} == {1, 2}

    with_fleet(work)


def test_lost_answers_lose_nothing() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "ok", "ok")
        fleet.lose_answers = 3
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) >= 1)
            fleet.lose_answers = 3
            await fleet.until(lambda: len(fleet.stored) == 3 and not fleet.reports[-1].results)
        assert fleet.outcomes() == ["ok"] * 3
        measured = {result.number for report in fleet.reports for result in report.results}
        assert measured == {1, 2, 3}, "each candidate was measured once"

    with_fleet(work)


def test_a_restarted_server_gets_the_workers_results(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["gate"] = str(tmp_path / "gate")
        fleet.offer("ok", "wait_for_file", "ok", workload="gate")
        async with working(fleet) as worker:
            await fleet.until(lambda: len(fleet.stored) == 1)
            await fleet.stop()
            (tmp_path / "gate").touch()
            # Everything is measured while the service is down.
            while worker.agent.state is not WorkerState.READY:
                await asyncio.sleep(0.01)
            await fleet.start()
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert {report.session_id for report in fleet.reports} == {"session"}
        assert {result.number for report in fleet.reports for result in report.results} == {1, 2, 3}

    with_fleet(work)


def test_a_worker_may_be_there_before_its_server() -> None:
    async def work(fleet: FakeFleet) -> None:
        await fleet.stop()
        async with working(fleet) as worker:
            while worker.agent.state is not WorkerState.READY:
                await asyncio.sleep(0.01)
            await fleet.start()
            fleet.offer("ok")
            await fleet.until(lambda: fleet.outcomes() == ["ok"])

    with_fleet(work)


def test_a_fenced_worker_stops_and_says_why() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("hang")
        async with working(fleet) as worker:
            await fleet.until(lambda: in_state(fleet, WorkerState.BUSY))
            fleet.fence = True
            with pytest.raises(Fenced, match="--name"):
                await worker.running
            assert worker.executor.child_pid is None
        assert not fleet.stored

    with_fleet(work)


def test_a_new_session_begins_anew() -> None:
    async def work(fleet: FakeFleet) -> None:
        async with working(fleet, session="one"):
            await fleet.until(lambda: len(fleet.reports) > 2)
        first = len(fleet.reports)
        async with working(fleet, session="two"):
            await fleet.until(lambda: len(fleet.reports) > first)
        assert fleet.reports[-1].session_id == "two"
        assert fleet.reports[first].starting

    with_fleet(work)


def test_a_lease_that_is_taken_back_is_dropped_at_once() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "hang")
        async with working(fleet) as worker:
            await fleet.until(lambda: len(fleet.stored) == 1)
            hanging = worker.executor.child_pid
            fleet.leases.clear()
            fleet.held = None
            fleet.offer("ok")
            fleet.stored.clear()
            await fleet.until(lambda: fleet.outcomes() == ["ok"] and not fleet.reports[-1].held)
            assert worker.executor.child_pid != hanging

    with_fleet(work)


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "--token"),
        (grpc.StatusCode.FAILED_PRECONDITION, "same tunefarm version"),
        (grpc.StatusCode.INVALID_ARGUMENT, "same tunefarm version"),
    ],
)
def test_a_refusal_ends_the_worker_with_a_hint(status: grpc.StatusCode, hint: str) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.refusal = status, "no"
        async with working(fleet) as worker:
            with pytest.raises(WorkerRefused, match=f"{fleet.port} refused this worker: no; .*{hint}"):
                await worker.running

    with_fleet(work)


def test_a_missing_workload_fails_only_its_candidates() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "ok", workload="lost")
        lease = fleet.leases[0]
        there = replace(lease.candidates[0], workload_hash="there")
        fleet.leases = [replace(lease, candidates=(there, lease.candidates[1]))]
        fleet.workloads = {"there": ""}
        fleet.offer("ok")
        async with working(fleet, replace(BRISK, build_together=8)):
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert fleet.outcomes() == ["ok", "unknown", "ok"]
        assert "no such workload" in measurement_of(fleet, 2).error

    with_fleet(work)


@pytest.mark.parametrize(("damaged", "outcome", "fetches"), [(0, "ok", 1), (2, "ok", 3), (3, "unknown", 3)])
def test_a_module_is_fetched_checked_and_timed(damaged: int, outcome: str, fetches: int) -> None:
    async def work(fleet: FakeFleet) -> None:
        sha256 = hashlib.sha256(b"ok").hexdigest()
        fleet.blobs[sha256] = b"ok"
        fleet.damaged = damaged
        fleet.offer_modules(ModuleRun(5, "tuned", sha256))
        async with working(fleet):
            await fleet.until(lambda: fleet.outcomes() == [outcome])
        assert fleet.stored[5].module_run_id == 5
        assert fleet.fetched == [sha256] * fetches

    with_fleet(work)


def test_a_model_that_crashes_leaves_the_other_models_comparison() -> None:
    """The tuned model isn't compared with an untuned one that crashes."""
    shas = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("segfault", "ok", SAYS)}
    kinds: tuple[tuple[ModuleKind, str], ...] = (
        ("untuned", "segfault"),
        ("published", "ok"),
        ("tuned", SAYS),
    )

    async def work(fleet: FakeFleet) -> None:
        fleet.blobs = {sha: text.encode() for text, sha in shas.items()}
        runs = [ModuleRun(n, kind, shas[text], kind == "tuned") for n, (kind, text) in enumerate(kinds, 1)]
        fleet.offer_modules(*runs)
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 3)
        crashed, timed, compared = (fleet.stored[number].measurement for number in (1, 2, 3))
        assert isinstance(crashed, Measurement)
        assert "SIGSEGV" in crashed.error
        assert isinstance(timed, Measurement)
        assert timed.run_s == (0.001,) * ROUNDS
        assert isinstance(compared, Measurement)
        assert compared.error == "compared: False"

    with_fleet(work)


def test_the_users_model_is_timed_in_onnx_runtime_in_the_same_turns() -> None:
    says = "say the shapes"
    shas = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("ok", says)}

    async def work(fleet: FakeFleet) -> None:
        fleet.blobs = {sha: text.encode() for text, sha in shas.items()}
        shapes = '{"x": [1, 3]}'
        fleet.offer_modules(
            ModuleRun(1, "tuned", shas["ok"]),
            ModuleRun(2, "onnxruntime", shas["ok"], shapes=shapes),
            ModuleRun(3, "onnxruntime", shas[says], shapes=shapes),
        )
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 3)
        tuned, in_onnx_runtime, asked = (fleet.stored[number].measurement for number in (1, 2, 3))
        assert isinstance(tuned, Measurement)
        assert isinstance(in_onnx_runtime, Measurement)
        assert len(tuned.run_s) == len(in_onnx_runtime.run_s) == ROUNDS
        assert isinstance(asked, Measurement)
        assert asked.error == f"shapes: {shapes}"

    with_fleet(work)


def test_onnx_runtime_alone_is_timed_in_one_turn() -> None:
    sha = hashlib.sha256(b"ok").hexdigest()

    async def work(fleet: FakeFleet) -> None:
        fleet.blobs = {sha: b"ok"}
        fleet.offer_modules(ModuleRun(1, "onnxruntime", sha, shapes='{"x": [1, 3]}'))
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 1)
        timed = fleet.stored[1].measurement
        assert isinstance(timed, Measurement)
        assert len(timed.run_s) == 1

    with_fleet(work)


def test_a_models_energy_is_measured_where_the_machine_tells(tmp_path: Path) -> None:
    """The machine takes 100 W. Two calls take at least 0.1 s. A failure to measure it leaves the timing."""
    kinds: tuple[tuple[ModuleKind, str], ...] = (
        ("untuned", "lack of memory"),
        ("published", "wrong clock"),
        ("tuned", "two calls"),
    )
    chip = tmp_path / "class/hwmon/hwmon0"
    chip.mkdir(parents=True)
    (chip / "name").write_text("power_meter\n")
    (chip / "power1_average").write_text("100000000\n")

    async def work(fleet: FakeFleet) -> None:
        shas = {text: hashlib.sha256(text.encode()).hexdigest() for _, text in kinds}
        fleet.blobs = {sha: text.encode() for text, sha in shas.items()}
        fleet.offer_modules(*(ModuleRun(n, kind, shas[text]) for n, (kind, text) in enumerate(kinds, 1)))
        async with working(fleet, find_meter=lambda: EnergyMeter.find(tmp_path)):
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert fleet.outcomes() == ["ok"] * 3
        measured = [fleet.stored[number].measurement for number in (1, 2, 3)]
        footprints = [one.footprint for one in measured if isinstance(one, Measurement)]
        assert footprints[:2] == [Footprint(0.01, 1000)] * 2
        assert footprints[2] is not None
        assert footprints[2].energy_j is not None
        assert footprints[2].energy_j >= 100 * 0.1 / 2

    with_fleet(work)


def test_a_device_gets_no_work_until_the_probe_passes(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok")
        async with working(fleet, TVM_FAULT_UNTIL=str(tmp_path / "mended")):
            await fleet.until(lambda: len(fleet.reports) >= 5)
            assert states(fleet) == [WorkerState.PROBING]
            (tmp_path / "mended").touch()
            await fleet.until(lambda: fleet.outcomes() == ["ok"])

    with_fleet(work)


def test_a_broken_device_returns_its_lease_and_probes(tmp_path: Path) -> None:
    async def work(fleet: FakeFleet) -> None:
        sound = tmp_path / "sound"
        sound.touch()
        async with working(fleet, TVM_FAULT_UNTIL=str(sound)):
            await fleet.until(lambda: in_state(fleet, WorkerState.READY))
            sound.unlink()
            fleet.offer("run exit", "ok")
            await fleet.until(lambda: in_state(fleet, WorkerState.PROBING))
            assert (fleet.reports[-1].held, fleet.reports[-1].device) == (None, None)
            assert fleet.held is None, "it gave its lease back"
            sound.touch()
            await fleet.until(lambda: len(fleet.stored) == 2)
        assert fleet.outcomes() == ["run_error", "ok"]
        assert fleet.reports[-1].vitals.health_error == ""

    with_fleet(work)


@pytest.mark.parametrize("role", list(Role))
def test_an_unhealthy_device_tells_the_service_why(tmp_path: Path, role: Role) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", build=role is Role.BUILD)
        config = replace(BRISK, role=role)
        mended = tmp_path / "mended"
        async with working(fleet, config, TVM_FAULT_UNTIL=str(mended), TVM_FAULT_HOW="SIGILL"):
            await fleet.until(lambda: fleet.reports != [] and fleet.reports[-1].vitals.health_error != "")
            assert states(fleet) == [WorkerState.PROBING]
            told = fleet.reports[-1].vitals.health_error
            assert told.startswith("its check was ended by SIGILL (illegal instruction): ")
            mended.touch()
            await fleet.until(lambda: in_state(fleet, WorkerState.READY) and len(fleet.stored) == 1)
            assert fleet.reports[-1].vitals.health_error == ""

    with_fleet(work)


def test_the_once_flag_ends_after_one_lease() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "ok")
        fleet.offer("ok")
        async with working(fleet, AgentConfig(2, 0.05, once=True)) as worker:
            await worker.running
        assert fleet.outcomes() == ["ok", "ok"]
        assert states(fleet) == [WorkerState.PROBING, WorkerState.READY, WorkerState.DRAINING]

    with_fleet(work)


def test_a_farewell_delivers_remaining_results() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "hang")
        fleet.acknowledging = False
        async with working(fleet) as worker:
            await fleet.until(lambda: len(fleet.stored) == 1)
            worker.running.cancel()
            await asyncio.gather(worker.running, return_exceptions=True)
            assert worker.executor.child_pid is None
            await worker.agent.farewell()
        last = fleet.reports[-1]
        assert (last.state, last.held, len(last.results)) == (WorkerState.OFFLINE, None, 1)

    with_fleet(work)
