"""The gRPC service for workers: sessions, leases, results and files."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import grpc
import pytest

from core.job import JobState
from core.lease import Candidate, Lease, LeaseId, Limits, ModuleRun
from core.measurement import Measurement, Outcome
from core.worker import Vitals, WorkerState
from proto import convert
from proto import fleet_pb2 as pb
from proto.messages import PROTOCOL, Result
from records import devices
from records.fleet import leases, module_runs
from records.fleet.leases import WITHOUT_ONNX_RUNTIME
from records.jobs import jobs, tasks, trials
from records.jobs.tasks import TaskSpec
from records.jobs.trials import NewTrial
from records.schedules import schedules
from records.storage import blobs
from records.storage.database import StorageError
from server.fleet.sessions import MIN_INTERVAL_S
from tests.devices import DEVICE
from tests.integration.server.requests import OK, leased, results

from .conftest import Service, Start, Worker, on_both_databases, wait_until

pytestmark = on_both_databases

FAILED = Measurement(Outcome.BUILD_ERROR, error="no such intrinsic")


def tuning_job(service: Service, worker: Worker, count: int = 3) -> str:
    """Store a job that is being tuned, with trials that wait for the worker's device class."""
    job_id = service.submit()
    with service.database.begin() as session:
        devices.put_class(session, worker.device)
        assert jobs.set_device_class(session, job_id, worker.device.key)
        assert jobs.advance(session, job_id, {JobState.QUEUED}, JobState.TUNING, 1.0)
        tasks.put_workload(session, "abc", '{"a": 1}')
        tasks.add_tasks(session, job_id, [TaskSpec(job_id, "abc", "conv", 1, 1e6, True, "", (1,))])
        (task,) = tasks.for_job(session, job_id)
        new = [NewTrial(task.id, "abc", {"n": n}, f"[{n}]", 1e-3) for n in range(count)]
        assert len(trials.add(session, job_id, 1, new, 2.0)) == count
    service.wakes.clear()
    return job_id


def done(service: Service, job_id: str) -> int:
    with service.database.begin() as session:
        return trials.counts(session, job_id).done


def test_a_worker_appears_with_its_device_when_it_is_ready(service: Service, worker: Worker) -> None:
    assert worker.call(WorkerState.PROBING).lease is None
    (shown,) = service.http.get("/v1/workers").json()["items"]
    assert (shown["id"], shown["state"], shown["device_class"]) == ("board", "probing", None)
    worker.call()
    (shown,) = service.http.get("/v1/workers").json()["items"]
    assert (shown["state"], shown["device_class"]) == ("ready", DEVICE.key)
    assert shown["device_name"] == DEVICE.name
    (known,) = service.http.get("/v1/device-classes").json()["items"]
    assert (known["key"], known["target"], known["features"]) == (
        DEVICE.key,
        DEVICE.target,
        list(DEVICE.features),
    )


def test_waiting_jobs_are_woken_when_a_worker_becomes_ready(service: Service, worker: Worker) -> None:
    job_id = service.submit()
    service.wakes.clear()
    worker.call(WorkerState.PROBING)
    assert service.wakes == []
    worker.call()
    worker.call()
    assert service.wakes == [("intake", job_id)]


def test_a_batch_is_leased_measured_and_stored(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    assert lease.target == DEVICE.target
    assert [candidate.trace for candidate in lease.candidates] == ["[0]", "[1]", "[2]"]
    assert lease.candidates[0] == Candidate(lease.candidates[0].trial_id, "abc", "[0]", (1,))
    kept = worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)[:1])
    assert (kept.keeps, kept.lease, kept.acknowledged) == (lease.id, None, (1,))
    assert service.wakes == []
    ended = worker.call(results=results(lease)[1:])
    assert (ended.keeps, ended.lease, ended.acknowledged) == (None, None, (2, 3))
    assert service.wakes == [("round", job_id)]
    best = service.http.get("/v1/schedules/best", params={"workload": "abc"}).json()
    assert (best["latency_s"], best["device_class"]) == (2e-3, DEVICE.key)
    assert service.http.get(f"/v1/jobs/{job_id}").json()["trials_done"] == 3


def test_a_candidate_carries_the_best_latency_of_its_workload(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    first = leased(worker, slots=1)
    assert first.candidates[0].best_s is None
    worker.call(slots=0, results=results(first))
    assert [candidate.best_s for candidate in leased(worker).candidates] == [2e-3, 2e-3]


def test_no_more_is_leased_than_there_are_slots(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    assert worker.call(slots=0).lease is None
    assert len(leased(worker, slots=2).candidates) == 2


def test_results_sent_twice_are_stored_once_and_acknowledged_twice(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    sent = results(lease)
    for _ in range(3):
        assert worker.call(WorkerState.BUSY, results=sent).acknowledged == (1, 2, 3)
    assert done(service, job_id) == 3
    (shown,) = service.http.get("/v1/workers").json()["items"]
    assert shown["trials_done"] == 3
    assert service.wakes == [("round", job_id)]


def test_a_failure_is_a_result(service: Service, worker: Worker) -> None:
    tuning_job(service, worker, count=1)
    worker.call(results=results(leased(worker), FAILED))
    assert service.http.get("/v1/schedules/best", params={"workload": "abc"}).status_code == 404
    with service.database.begin() as session:
        (record,) = schedules.history(session, DEVICE.key)
    assert record.outcome is Outcome.BUILD_ERROR


def test_a_lease_whose_answer_got_lost_is_sent_again(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    first = leased(worker)
    again = leased(worker)
    assert (again.id, again.candidates) == (first.id, first.candidates)


def test_a_lease_that_the_service_does_not_know_is_dropped(service: Service, worker: Worker) -> None:
    worker.call()
    answer = worker.call(WorkerState.BUSY, held=LeaseId("made-up", 1))
    assert (answer.keeps, answer.lease, answer.fenced) == (None, None, False)


def test_a_new_session_fences_the_old_one_off(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    newer = Worker(service.fleet)
    newer.call(WorkerState.PROBING)
    for starting in (False, True):
        worker.starting = starting
        answer = worker.call(WorkerState.BUSY, held=lease.id, results=results(lease))
        assert answer.fenced
        assert (answer.keeps, answer.acknowledged) == (None, ())
    assert done(service, job_id) == 0
    assert not newer.call().fenced


def test_in_a_large_fleet_workers_call_rarely_and_leases_last_longer(
    service: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.fleet.sessions.CALLS_A_SECOND", 0.05)
    tuning_job(service, worker)
    lease = leased(worker)
    kept = worker.call(WorkerState.BUSY, held=lease.id)
    assert (kept.keeps, kept.call_again_after_s) == (lease.id, 20.0)
    with service.database.begin() as session:
        assert leases.expire(session, time.time() + 50) == []
        assert len(leases.expire(session, time.time() + 61)) == 1


def test_workers_call_rarely_while_calls_take_long(
    service: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning_job(service, worker)
    lease = leased(worker)
    assert worker.call(WorkerState.BUSY, held=lease.id).call_again_after_s == MIN_INTERVAL_S
    monkeypatch.setattr("server.fleet.sessions.RESTS_PER_CALL", 1e9)
    kept = worker.call(WorkerState.BUSY, held=lease.id)
    assert (kept.keeps, kept.call_again_after_s) == (lease.id, 20.0)


def test_a_worker_unknown_to_the_server_continues(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.fleet.sessions.FORGET_S", 0.0)
    service = start()
    worker = Worker(service.fleet)
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    Worker(service.fleet, id="other").call(WorkerState.PROBING)
    kept = worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)[:1])
    assert (kept.keeps, kept.acknowledged, kept.call_again_after_s) == (lease.id, (1,), MIN_INTERVAL_S)
    assert worker.call(results=results(lease)[1:]).acknowledged == (2, 3)
    assert done(service, job_id) == 3


def test_a_session_cannot_report_for_another_sessions_lease(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    thief = Worker(service.fleet, id="thief")
    assert thief.call(slots=0, results=results(lease)).acknowledged == (1, 2, 3)
    assert done(service, job_id) == 0
    assert thief.call(WorkerState.BUSY, held=lease.id).keeps is None


def test_an_expired_leases_results_change_nothing(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    with service.database.begin() as session:
        assert leases.expire(session, time.time() + 1000) == [job_id]
    assert worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)).keeps is None
    assert done(service, job_id) == 0
    second = leased(worker)
    assert second.id.id != lease.id.id
    assert second.id.attempt == 2


def test_a_service_that_requires_a_sandbox_gives_no_work_to_workers_with_gaps(start: Start) -> None:
    service = start(require_sandbox=True)
    board = Worker(service.fleet)
    tuning_job(service, board)
    gap = "measured code sees the network: allow namespaces"
    assert board.call(vitals=Vitals(sandbox_gaps=gap), wait_s=5.0).lease is None
    (shown,) = service.http.get("/v1/workers").json()["items"]
    assert (shown["state"], shown["device_class"]) == ("probing", None)
    assert shown["health_error"].startswith(
        "this service requires a sandbox without gaps (TUNEFARM_REQUIRE_SANDBOX)"
    )
    assert gap in shown["health_error"]
    lease = leased(board)
    kept = board.call(WorkerState.BUSY, held=lease.id, vitals=Vitals(sandbox_gaps=gap))
    assert kept.keeps == lease.id, "what it holds it may end"


def test_a_draining_worker_gets_nothing_new(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    assert worker.call(WorkerState.DRAINING).lease is None


def test_another_device_class_gets_nothing(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    other = Worker(service.fleet, id="other", device=replace(DEVICE, cores=64))
    assert other.call().lease is None


def test_a_waiting_worker_gets_work_as_soon_as_there_is_some(service: Service, worker: Worker) -> None:
    worker.call()
    got: list[Lease] = []
    waiting = threading.Thread(target=lambda: got.append(leased(worker, wait_s=15)))
    waiting.start()
    time.sleep(0.3)
    tuning_job(service, worker)
    waiting.join(10)  # sooner than the wait ends by itself
    assert got


def test_a_wait_ends_after_the_requested_time(service: Service, worker: Worker) -> None:
    began = time.monotonic()
    answer = worker.call(wait_s=0.3)
    assert (answer.lease, answer.call_again_after_s) == (None, 0.0)
    assert time.monotonic() - began > 0.25


def test_a_fenced_session_stops_waiting(service: Service, worker: Worker) -> None:
    fenced: list[bool] = []
    waiting = threading.Thread(target=lambda: fenced.append(worker.call(wait_s=15).fenced))
    waiting.start()
    wait_until(lambda: bool(service.http.get("/v1/workers").json()["items"]))
    Worker(service.fleet).call(slots=0)
    waiting.join(5)
    assert fenced == [True]


def test_a_module_run_gets_memory_by_the_size_of_its_artifact(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker, count=1)
    with service.database.begin() as session:
        sha = blobs.put(session, bytes(10 << 20))
        module_runs.add(session, job_id, "untuned", sha, 3.0)
    lease = leased(worker)
    assert lease.limits == Limits.for_module(10 << 20)
    assert lease.limits.memory_bytes > Limits().memory_bytes + (50 << 20)


def test_a_module_run_is_leased_timed_and_published(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker, count=1)
    packed = bytes(range(256)) * 20_000
    with service.database.begin() as session:
        sha = blobs.put(session, packed)
        run_id = module_runs.add(session, job_id, "untuned", sha, 3.0)
        tuned_id = module_runs.add(session, job_id, "tuned", sha, 3.0)
    lease = leased(worker)
    assert lease.module_runs == (
        ModuleRun(run_id, "untuned", sha),
        ModuleRun(tuned_id, "tuned", sha, compare=True),
    )
    assert lease.candidates == ()
    fetched = b"".join(chunk.data for chunk in service.fleet.GetBlob(pb.BlobRequest(sha256=sha), timeout=10))
    assert hashlib.sha256(fetched).hexdigest() == sha
    failed = Measurement(Outcome.RUN_ERROR, error="the child was ended by SIGSEGV during the run")
    worker.call(held=lease.id, slots=0, results=(Result(1, lease.id, failed, module_run_id=run_id),))
    assert service.wakes == []
    worker.call(slots=0, results=(Result(2, lease.id, OK, module_run_id=tuned_id),))
    assert service.wakes == [("publish", job_id)]
    with service.database.begin() as session:
        ends = [(run.outcome, run.run_s) for run in module_runs.of_job(session, job_id)]
    assert ends == [(Outcome.RUN_ERROR, ()), (Outcome.OK, OK.run_s)]


def test_onnx_runtime_is_timed_only_by_workers_that_have_onnx_runtime(
    service: Service, worker: Worker
) -> None:
    job_id = tuning_job(service, worker, count=1)
    with service.database.begin() as session:
        sha = jobs.get(session, job_id).request.model_sha
        tuned_id = module_runs.add(session, job_id, "tuned", blobs.put(session, b"packed"), 3.0)
        run_id = module_runs.add(session, job_id, "onnxruntime", sha, 3.0)
    lease = leased(worker)
    assert [run.id for run in lease.module_runs] == [tuned_id]
    with service.database.begin() as session:
        [_, run] = module_runs.of_job(session, job_id)
        assert (run.id, run.state, run.error) == (run_id, "done", WITHOUT_ONNX_RUNTIME)
        module_runs.time_again(session, [run_id])
    worker.call(slots=0, results=(Result(1, lease.id, OK, module_run_id=tuned_id),))
    again = leased(worker, vitals=Vitals(onnxruntime_version="1.31.1"))
    [timed] = again.module_runs
    assert (timed.id, timed.kind, timed.artifact_sha) == (run_id, "onnxruntime", sha)
    with service.database.begin() as session:
        assert json.loads(timed.shapes) == {
            name: list(shape) for name, shape in jobs.get(session, job_id).request.shapes.items()
        }
        assert module_runs.of_job(session, job_id)[1].onnxruntime == "1.31.1"


def test_a_tuned_model_is_not_compared_with_a_failing_untuned_one(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker, count=1)
    with service.database.begin() as session:
        sha = blobs.put(session, b"packed")
        untuned_id = module_runs.add(session, job_id, "untuned", sha, 3.0)
    lost = Measurement(Outcome.DEVICE_LOST, error="lost")
    lease = leased(worker)
    worker.call(slots=0, results=(Result(1, lease.id, lost, module_run_id=untuned_id),))
    with service.database.begin() as session:
        tuned_id = module_runs.add(session, job_id, "tuned", sha, 4.0)
    assert leased(worker).module_runs == (ModuleRun(tuned_id, "tuned", sha, compare=False),)


def test_workloads_are_fetched_by_hash(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    answer = service.fleet.GetWorkload(pb.WorkloadRequest(workload_hash="abc"), timeout=5)
    assert (answer.workload_hash, answer.module_json) == ("abc", '{"a": 1}')


def refused(service: Service, message: pb.SynchronizeRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        service.fleet.Synchronize(message, timeout=5)
    return error.value.code(), error.value.details() or ""


def request() -> pb.SynchronizeRequest:
    return pb.SynchronizeRequest(
        protocol=PROTOCOL,
        worker_id="w",
        session_id="s",
        state="WORKER_STATE_READY",
        device=convert.device_to_wire(DEVICE),
    )


def test_invalid_calls_are_refused_and_change_nothing(service: Service) -> None:
    for protocol in (1, 9):
        code, details = refused(service, pb.SynchronizeRequest(protocol=protocol))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "same tunefarm version" in details
    impossible = request()
    impossible.device.cores = 0
    code, details = refused(service, impossible)
    assert (code, "cores" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    for wrong in ({"worker_id": ""}, {"state": 55}, {"wait_s": float("nan")}):
        message = request()
        for field, value in wrong.items():
            setattr(message, field, value)
        assert refused(service, message)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert service.http.get("/v1/workers").json()["items"] == []


def test_an_invalid_measurement_affects_only_itself(service: Service, worker: Worker) -> None:
    job_id = tuning_job(service, worker)
    sent = results(leased(worker))
    message = request()
    message.worker_id, message.session_id = worker.id, worker.session
    message.results.extend(convert.result_to_wire(result) for result in sent)
    message.results[0].measurement.run_s[0] = float("nan")
    assert list(service.fleet.Synchronize(message, timeout=5).acknowledged) == [1, 2, 3]
    with service.database.begin() as session:
        outcomes = [record.outcome for record in schedules.history(session, DEVICE.key)]
    assert sorted(outcomes) == ["ok", "ok", "unknown"]
    assert done(service, job_id) == 3


def test_unknown_files_and_workloads_are_not_found(service: Service) -> None:
    with pytest.raises(grpc.RpcError) as no_workload:
        service.fleet.GetWorkload(pb.WorkloadRequest(workload_hash="nope"), timeout=5)
    with pytest.raises(grpc.RpcError) as no_blob:
        list(service.fleet.GetBlob(pb.BlobRequest(sha256="../etc"), timeout=5))
    for error in (no_workload, no_blob):
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_failing_storage_asks_the_worker_to_try_again(
    service: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def failing() -> Iterator[None]:
        raise StorageError("the disk is full", full=True)
        yield

    calls = (
        lambda: service.fleet.Synchronize(request(), timeout=5),
        lambda: service.fleet.GetWorkload(pb.WorkloadRequest(workload_hash="abc"), timeout=5),
        lambda: list(service.fleet.GetBlob(pb.BlobRequest(sha256="abc"), timeout=5)),
    )
    with monkeypatch.context() as patched:
        patched.setattr(service.database, "begin", failing)
        for call in calls:
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not worker.call().fenced
