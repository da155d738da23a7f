"""List and control workers over HTTP, while they call over gRPC."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import event

from core.measurement import Measurement, Outcome
from core.worker import DesiredState, Vitals, WorkerState
from proto.messages import SyncResponse
from records.fleet import workers
from records.fleet.workers import WorkerSession
from records.jobs import tasks, trials
from records.jobs.trials import Trial
from tests.devices import DEVICE

from .conftest import Service, Start, Worker, on_both_databases
from .test_fleet import OK, leased, results, tuning_job

pytestmark = on_both_databases

VITALS = Vitals("0.1.0", "0.27.0", 3.25, 61.5, 1 << 30)


def shown(service: Service, worker_id: str = "board") -> dict[str, object]:
    items = service.http.get("/v1/workers").json()["items"]
    return dict(next(item for item in items if item["id"] == worker_id))


def act(service: Service, action: str, worker_id: str = "board") -> dict[str, object]:
    response = service.http.post(f"/v1/workers/{worker_id}:{action}")
    assert response.status_code == 200, response.text
    return dict(response.json())


def stored(service: Service, job_id: str) -> list[Trial]:
    with service.database.begin() as session:
        (task,) = tasks.for_job(session, job_id)
        return trials.for_task(session, task.id)


def test_a_worker_is_shown_with_its_whole_report(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    lease = leased(worker)
    half = replace(VITALS, candidates=3, candidates_done=1)
    worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)[:1], vitals=half)
    seen = shown(service)
    said = {name: seen[name] for name in ("load", "temperature_c", "memory_free_bytes", "tvm_version")}
    assert said == {
        "load": 3.25,
        "temperature_c": 61.5,
        "memory_free_bytes": 1 << 30,
        "tvm_version": "0.27.0",
    }
    assert (seen["cores"], seen["connected"], seen["desired_state"]) == (DEVICE.cores, True, "work")
    assert (seen["lease"], seen["candidates_done"], seen["candidates"]) == (lease.id.id, 1, 3)
    assert seen["trials_per_minute"] > 0  # type: ignore[operator]
    assert 0.0 <= seen["last_seen_ago_s"] < 60.0  # type: ignore[operator]


def test_a_workers_failures_are_shown_by_kind(service: Service, worker: Worker) -> None:
    tuning_job(service, worker, count=4)
    lease = leased(worker)
    ends = (OK, *(Measurement(outcome) for outcome in (Outcome.RUN_TIMEOUT, Outcome.RUN_TIMEOUT)))
    sent = [replace(one, measurement=end) for one, end in zip(results(lease), ends, strict=False)]
    worker.call(WorkerState.BUSY, held=lease.id, results=tuple(sent))
    assert (shown(service)["failures"], shown(service)["failures_by_kind"]) == (2, {"run_timeout": 2})


def test_calibration_is_requested_until_the_worker_calibrated(service: Service, worker: Worker) -> None:
    slow, fast = (replace(DEVICE.speeds, hertz=hertz, derived=("registers",)) for hertz in (2e9, 4e9))
    worker.device = replace(DEVICE, profile=slow)
    assert not worker.call(calibrated=True).calibrate
    assert act(service, "calibrate")["calibrate"]
    assert act(service, "calibrate")["calibrate"]
    for state in (WorkerState.READY, WorkerState.PROBING, WorkerState.READY):
        assert worker.call(state).calibrate
    worker.device = replace(DEVICE, profile=fast)
    assert not worker.call(calibrated=True).calibrate
    assert not shown(service)["calibrate"]
    (known,) = service.http.get("/v1/device-classes").json()["items"]
    assert known["profile"]["hertz"] == 4e9
    assert known["profile"]["derived"] == ["registers"]


def test_a_waiting_worker_gets_a_calibration_request_at_once(service: Service, worker: Worker) -> None:
    worker.call()
    asking = threading.Timer(0.3, act, (service, "calibrate"))
    asking.start()
    responses = [worker.call(wait_s=30.0), worker.call(wait_s=30.0)]
    asking.join()
    assert responses[-1].calibrate


def test_a_profile_that_no_machine_has_is_not_stored(service: Service, worker: Worker) -> None:
    worker.device = replace(DEVICE, profile=replace(DEVICE.speeds, memory_rate_all=1e12))
    assert worker.call(calibrated=True).lease is None
    (known,) = service.http.get("/v1/device-classes").json()["items"]
    assert known["profile"] is None


def test_a_worker_that_does_not_know_how_to_calibrate_gets_work(service: Service, worker: Worker) -> None:
    worker.call()
    act(service, "calibrate")
    tuning_job(service, worker)
    response = worker.call(wait_s=30.0)
    assert response.calibrate
    assert response.lease is not None


def test_a_drained_worker_keeps_its_lease_and_gets_no_other(service: Service, worker: Worker) -> None:
    tuning_job(service, worker, count=6)
    lease = leased(worker, slots=2)
    assert act(service, "drain")["desired_state"] == "drain"
    kept = worker.call(WorkerState.BUSY, held=lease.id)
    assert (kept.keeps, kept.desired_state) == (lease.id, DesiredState.DRAIN)
    done = worker.call(results=results(lease))
    assert (done.lease, done.desired_state, done.acknowledged) == (None, DesiredState.DRAIN, (1, 2))
    assert worker.call(WorkerState.DRAINING).desired_state is DesiredState.DRAIN
    assert act(service, "resume")["desired_state"] == "work"
    assert worker.call(WorkerState.DRAINING).desired_state is DesiredState.WORK
    assert len(leased(worker).candidates) == 4


def test_draining_outlives_the_server_and_the_session(start: Start) -> None:
    first = start()
    Worker(first.fleet).call()
    act(first, "drain")
    second = start()  # another server on the same database
    worker = Worker(second.fleet)
    tuning_job(second, worker)
    response = worker.call()
    assert (response.lease, response.desired_state) == (None, DesiredState.DRAIN)
    act(first, "resume")
    assert len(leased(worker).candidates) == 3


def test_jobs_that_waited_for_a_drained_worker_are_woken(service: Service, worker: Worker) -> None:
    worker.call()
    act(service, "drain")
    worker.call(WorkerState.DRAINING)
    job_id = service.submit()
    service.wakes.clear()
    act(service, "resume")
    worker.call()
    assert ("intake", job_id) in service.wakes


def test_draining_ends_the_wait_for_work(service: Service, worker: Worker) -> None:
    responses: list[SyncResponse] = []
    worker.call()
    waiting = threading.Thread(target=lambda: responses.append(worker.call(wait_s=25)))
    waiting.start()
    time.sleep(0.3)
    act(service, "drain")
    waiting.join(10)
    assert [response.lease for response in responses] == [None]
    assert worker.call(wait_s=25).desired_state is DesiredState.DRAIN


def test_an_evicted_worker_loses_its_lease_at_once_and_no_device_counts_as_lost(
    service: Service, worker: Worker
) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)[:1])
    assert act(service, "evict")["desired_state"] == "evicted"
    assert [(one.state, one.attempts) for one in stored(service, job_id)] == [
        ("done", 0),
        ("pending", 0),
        ("pending", 0),
    ]
    response = worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)[1:])
    assert (response.fenced, response.desired_state, response.keeps) == (True, DesiredState.EVICTED, None)
    newcomer = Worker(service.fleet)
    assert newcomer.call(WorkerState.PROBING).desired_state is DesiredState.EVICTED
    other = Worker(service.fleet, id="other")
    assert [len(leased(other).candidates)] == [2]
    act(service, "resume")
    assert not worker.call().fenced
    newcomer.starting = True
    assert not newcomer.call(WorkerState.PROBING).fenced
    assert worker.call().fenced, "a newer session works under its name"
    assert worker.call().desired_state is DesiredState.WORK


@pytest.mark.parametrize("state", [WorkerState.PROBING, WorkerState.DRAINING, WorkerState.OFFLINE])
def test_a_worker_that_stops_or_breaks_gives_its_lease_back(
    service: Service, worker: Worker, state: WorkerState
) -> None:
    job_id = tuning_job(service, worker)
    lease = leased(worker)
    response = worker.call(state, results=results(lease)[:1])
    assert response.acknowledged == (1,)
    left = [(one.state, one.attempts) for one in stored(service, job_id)]
    assert left == [("done", 0), ("pending", 0), ("pending", 0)]
    other = leased(Worker(service.fleet, id="other"))
    assert [candidate.trial_id for candidate in other.candidates] == [
        candidate.trial_id for candidate in lease.candidates[1:]
    ]
    assert other.id.attempt == 1


def test_a_worker_that_breaks_and_is_mended_wakes_the_jobs_that_waited(
    service: Service, worker: Worker
) -> None:
    worker.call()
    worker.call(WorkerState.PROBING)
    job_id = service.submit()
    service.wakes.clear()
    worker.call()
    assert service.wakes == [("intake", job_id)]


@pytest.mark.parametrize("builds_for", [(), ("x86_64",)])
def test_a_worker_that_cannot_measure_says_why(
    service: Service, worker: Worker, builds_for: tuple[str, ...]
) -> None:
    worker.builds_for = builds_for
    worker.call(WorkerState.PROBING)
    assert shown(service)["health_error"] == ""
    assert shown(service)["role"] == ("build" if builds_for else "measure")
    said = "its check was ended by SIGILL (illegal instruction)"
    worker.call(WorkerState.PROBING, vitals=replace(VITALS, health_error=said))
    assert (shown(service)["state"], shown(service)["health_error"]) == ("probing", said)
    assert "tunefarm_workers_unhealthy 1.0" in service.http.get("/metrics").text
    worker.call(vitals=VITALS)
    assert (shown(service)["state"], shown(service)["health_error"]) == ("ready", "")
    assert "tunefarm_workers_unhealthy 0.0" in service.http.get("/metrics").text


def test_an_unhealthy_worker_that_is_gone_is_not_counted(service: Service, worker: Worker) -> None:
    vitals = replace(VITALS, health_error="its check took longer than 120 s")
    worker.call(WorkerState.PROBING, vitals=vitals)
    worker.call(WorkerState.OFFLINE, vitals=vitals)
    assert "tunefarm_workers_unhealthy 0.0" in service.http.get("/metrics").text


def test_two_devices_share_a_batch(service: Service, worker: Worker) -> None:
    tuning_job(service, worker, count=12)
    other = Worker(service.fleet, id="other")
    worker.call(slots=0)
    other.call(slots=0)
    mine, theirs = leased(worker, slots=16), leased(other, slots=16)
    assert (len(mine.candidates), len(theirs.candidates)) == (6, 6)
    ids = [candidate.trial_id for lease in (mine, theirs) for candidate in lease.candidates]
    assert len(set(ids)) == len(ids)


def test_priority_and_weight_are_kept_with_the_job(service: Service) -> None:
    job_id = service.submit(priority=-5, weight=2.5)
    job = service.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["priority"], job["weight"]) == (-5, 2.5)
    plain = service.http.get(f"/v1/jobs/{service.submit()}").json()
    assert (plain["priority"], plain["weight"]) == (0, 1.0)


def test_the_choice_of_builder_is_kept_with_the_job(service: Service) -> None:
    jobs = [service.submit(), service.submit(build="builder")]
    kept = [service.http.get(f"/v1/jobs/{job_id}").json()["build"] for job_id in jobs]
    assert kept == ["auto", "builder"]
    body = {"model": service.upload(), "trials": 10, "build": "elsewhere"}
    assert service.http.post("/v1/jobs", json=body).status_code == 422


@pytest.mark.parametrize("wrong", [{"weight": 0}, {"weight": 1e9}, {"weight": "2"}, {"priority": 1.5}])
def test_invalid_weights_and_priorities_are_refused(service: Service, wrong: dict[str, object]) -> None:
    body = {"model": service.upload(), "trials": 10} | wrong
    assert service.http.post("/v1/jobs", json=body).status_code == 422


def test_a_worker_whose_name_has_slashes_can_be_reached(service: Service) -> None:
    Worker(service.fleet, id="rack/1:7").call()
    assert act(service, "drain", "rack%2F1:7")["id"] == "rack/1:7"


def test_metrics_count_workers_leases_and_trials(service: Service, worker: Worker) -> None:
    tuning_job(service, worker)
    Worker(service.fleet, id="gone").call()
    act(service, "evict", "gone")
    lease = leased(worker)
    worker.call(WorkerState.BUSY, held=lease.id, results=results(lease)[:1])
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(service.http.get("/metrics").text)
        for sample in family.samples
    }
    workers = {state: samples["tunefarm_workers", state] for state in ("busy", "evicted", "ready", "lost")}
    assert workers == {"busy": 1, "evicted": 1, "ready": 0, "lost": 0}
    assert samples["tunefarm_held_leases",] == 1
    assert samples["tunefarm_oldest_lease_seconds",] >= 0
    assert samples["tunefarm_trials_per_minute", DEVICE.name, DEVICE.key] > 0


def test_a_worker_that_stopped_cleanly_is_away_and_not_lost(service: Service, worker: Worker) -> None:
    worker.call()
    worker.call(WorkerState.OFFLINE)
    assert (shown(service)["connected"], shown(service)["state"]) == (False, "offline")
    with service.database.begin() as session:
        gone = WorkerState.OFFLINE
        workers.heartbeat(session, WorkerSession(worker.id, worker.session, gone), time.time() - 100)
    metrics = service.http.get("/metrics").text
    assert 'tunefarm_workers{state="offline"} 1.0' in metrics
    assert 'tunefarm_workers{state="lost"} 0.0' in metrics
    worker.call()
    assert (shown(service)["connected"], shown(service)["state"]) == (True, "ready")


def test_the_statements_of_readyz_do_not_depend_on_the_workers(service: Service, worker: Worker) -> None:
    worker.call()
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    with service.database.begin() as session:
        engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", note)
    assert service.http.get("/readyz").json() == {"status": "ok"}
    event.remove(engine, "before_cursor_execute", note)
    assert not [statement for statement in statements if "worker" in statement.lower()]


def test_a_silent_worker_is_lost(service: Service, worker: Worker) -> None:
    worker.call()
    with service.database.begin() as session:
        workers.heartbeat(
            session, WorkerSession(worker.id, worker.session, WorkerState.READY), time.time() - 100
        )
    assert (shown(service)["connected"], shown(service)["state"]) == (False, "ready")
    worker.call()
    assert shown(service)["connected"]
