"""Builders at a real server over gRPC: a device of another class measures what they build."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import replace

import grpc
import pytest

from compiler.packaging.archive import pack
from core.lease import Lease, LeaseId
from core.measurement import Built, Outcome
from core.worker import WorkerState
from proto import fleet_pb2 as pb
from proto.convert import library_to_wire
from proto.messages import LibraryUpload, Result
from records.jobs import jobs, tasks, trials
from records.jobs.trials import Trial
from tests.devices import DEVICE
from tests.shared_libraries import AARCH64, shared_library

from .conftest import Service, Worker, on_both_databases
from .test_fleet import leased, results, tuning_job

pytestmark = on_both_databases

BOARD = replace(DEVICE, name="a board", triple="aarch64-linux-gnu", target='{"kind":"llvm","mcpu":"a53"}')
MANIFEST = ("manifest.json", b"{}")
LIBRARY = pack([("candidate.so", shared_library(machine=AARCH64)), MANIFEST])
SHA = hashlib.sha256(LIBRARY).hexdigest()


@pytest.fixture
def builder(service: Service) -> Worker:
    return Worker(service.fleet, "builder", builds_for=("x86_64", "aarch64"))


@pytest.fixture
def board(service: Service) -> Worker:
    return Worker(service.fleet, "board", device=BOARD)


def put(worker: Worker, lease: LeaseId, trial_id: int, data: bytes = LIBRARY) -> str:
    message = library_to_wire(LibraryUpload(worker.session, lease, trial_id, data))
    stored: pb.LibraryStored = worker.fleet.PutLibrary(message, timeout=20)
    return stored.refused


def built(lease: Lease) -> tuple[Result, ...]:
    return tuple(
        Result(number, lease.id, Built(SHA, 0.25), trial_id=candidate.trial_id)
        for number, candidate in enumerate(lease.candidates, 1)
    )


def stored(service: Service, job_id: str) -> list[Trial]:
    with service.database.begin() as session:
        (task,) = tasks.for_job(session, job_id)
        return trials.for_task(session, task.id)


def fetch(worker: Worker, sha: str) -> bytes:
    chunks = worker.fleet.GetBlob(pb.BlobRequest(sha256=sha), timeout=20)
    return b"".join(chunk.data for chunk in chunks)


def test_a_builder_is_shown_as_a_builder(service: Service, builder: Worker) -> None:
    assert builder.call().lease is None
    (shown,) = service.http.get("/v1/workers").json()["items"]
    assert (shown["role"], shown["builds_for"]) == ("build", ["x86_64", "aarch64"])
    assert (shown["device_class"], shown["state"], shown["cores"]) == (None, "ready", DEVICE.cores)
    assert service.http.get("/v1/device-classes").json()["items"] == []


def test_a_device_measures_a_builders_library(service: Service, builder: Worker, board: Worker) -> None:
    builder.call(slots=0)
    board.call(slots=0)
    job_id = tuning_job(service, board, count=2)
    assert board.call().lease is None, "its candidates are built elsewhere"
    lease = leased(builder)
    assert (lease.build, lease.target) == (True, BOARD.target)
    assert [candidate.library_sha for candidate in lease.candidates] == [None, None]
    assert [put(builder, lease.id, candidate.trial_id) for candidate in lease.candidates] == ["", ""]
    done = builder.call(results=built(lease))
    assert (done.acknowledged, done.lease) == ((1, 2), None)
    assert [trial.state for trial in stored(service, job_id)] == ["pending", "pending"]
    measuring = leased(board)
    assert (measuring.build, measuring.target) == (False, BOARD.target)
    assert [candidate.library_sha for candidate in measuring.candidates] == [SHA, SHA]
    assert fetch(board, SHA) == LIBRARY
    board.call(results=results(measuring))
    assert [trial.outcome for trial in stored(service, job_id)] == ["ok", "ok"]
    with pytest.raises(grpc.RpcError) as gone:
        fetch(board, SHA)
    assert gone.value.code() is grpc.StatusCode.NOT_FOUND
    with service.database.begin() as session:
        assert jobs.get(session, job_id).trials_done == 2


def test_a_lease_to_build_whose_answer_got_lost_is_sent_again(
    service: Service, builder: Worker, board: Worker
) -> None:
    builder.call(slots=0)
    tuning_job(service, board)
    first = leased(builder)
    second = leased(builder)
    assert (second.id, second.build, second.target) == (first.id, True, BOARD.target)
    assert second.candidates == first.candidates


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no archive"),
        (pack([("candidate.so", shared_library()), MANIFEST]), "for aarch64"),
        (pack([("candidate.so", shared_library(["system"], AARCH64)), MANIFEST]), "needs: system"),
    ],
)
def test_a_library_that_the_device_must_not_load_is_refused(
    service: Service, builder: Worker, board: Worker, data: bytes, says: str
) -> None:
    builder.call(slots=0)
    job_id = tuning_job(service, board, count=1)
    lease = leased(builder)
    trial_id = lease.candidates[0].trial_id
    assert says in put(builder, lease.id, trial_id, data)
    end = Built(hashlib.sha256(data).hexdigest(), 0.1)
    builder.call(results=(Result(1, lease.id, end, trial_id=trial_id),))
    (trial,) = stored(service, job_id)
    assert (trial.state, trial.outcome) == ("done", Outcome.UNKNOWN)


def test_libraries_are_kept_only_for_the_holder_of_the_lease(
    service: Service, builder: Worker, board: Worker
) -> None:
    builder.call(slots=0)
    tuning_job(service, board, count=2)
    lease = leased(builder, slots=1)
    trial_id = lease.candidates[0].trial_id
    stranger = Worker(service.fleet, "stranger")
    assert put(stranger, lease.id, trial_id) == "the lease is over"
    assert put(builder, LeaseId("another", 1), trial_id) == "the lease is over"
    assert put(builder, lease.id, trial_id + 1) == "the lease doesn't hold its trial"
    damaged = library_to_wire(LibraryUpload(builder.session, lease.id, trial_id, LIBRARY))
    damaged.data = LIBRARY[:-1]
    assert "damaged" in service.fleet.PutLibrary(damaged, timeout=20).refused
    with pytest.raises(grpc.RpcError):
        fetch(board, SHA)


def test_a_waiting_builder_gets_new_trials(service: Service, builder: Worker, board: Worker) -> None:
    builder.call(slots=0)
    found: list[Lease | None] = []
    waiting = threading.Thread(target=lambda: found.append(builder.call(wait_s=20.0).lease))
    waiting.start()
    tuning_job(service, board, count=1)
    waiting.join(20)
    assert len(found) == 1
    assert found[0] is not None
    assert found[0].build


def test_a_waiting_device_gets_built_trials(service: Service, builder: Worker, board: Worker) -> None:
    builder.call(slots=0)
    board.call(slots=0)
    tuning_job(service, board, count=1)
    found: list[Lease | None] = []
    waiting = threading.Thread(target=lambda: found.append(board.call(wait_s=20.0).lease))
    waiting.start()
    lease = leased(builder)
    put(builder, lease.id, lease.candidates[0].trial_id)
    builder.call(WorkerState.BUSY, results=built(lease))
    waiting.join(20)
    assert found[0] is not None
    assert found[0].candidates[0].library_sha == SHA


def test_a_builder_that_is_drained_leaves_the_devices_to_themselves(
    service: Service, builder: Worker, board: Worker
) -> None:
    builder.call(slots=0)
    board.call(slots=0)
    tuning_job(service, board)
    assert board.call().lease is None
    refused = service.http.post("/v1/workers/builder:calibrate")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:tunefarm:problem:worker-builds")
    assert service.http.post("/v1/workers/builder:drain").status_code == 200
    assert not leased(board).build
