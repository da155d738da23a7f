"""Workers' names over the wire: the token that owns a name, and the machine that uses it."""

from __future__ import annotations

import grpc
import pytest

from core.tokens import Scope
from core.worker import WorkerState

from .conftest import Service, Start, Worker


def refusal(worker: Worker) -> tuple[grpc.StatusCode, str]:
    worker.starting = True
    with pytest.raises(grpc.RpcError) as error:
        worker.call()
    return error.value.code(), error.value.details() or ""


def make_token(service: Service) -> str:
    body = {"name": "board", "scopes": [Scope.WORKER]}
    answer = service.http.post("/v1/tokens", json=body, headers={"Authorization": "Bearer s3cret"})
    secret: str = answer.json()["token"]
    return secret


def test_a_name_belongs_to_a_token_and_an_evicted_worker_does_not_return_as_another(start: Start) -> None:
    service = start(token="s3cret")
    ours, theirs = make_token(service), make_token(service)
    board = Worker(service.fleet, token=ours)
    assert not board.call().fenced
    code, says = refusal(Worker(service.fleet, token=theirs))
    assert (code, "belongs to another token" in says) == (grpc.StatusCode.ALREADY_EXISTS, True)
    headers = {"Authorization": "Bearer s3cret"}
    assert service.http.post("/v1/workers/board:evict", headers=headers).is_success
    assert board.call().fenced
    code, says = refusal(Worker(service.fleet, id="renamed", token=ours))
    assert (code, "`tunefarm workers resume board`" in says) == (grpc.StatusCode.ALREADY_EXISTS, True)
    assert not Worker(service.fleet, id="renamed", token=theirs).call().fenced


def test_a_heartbeat_with_another_workers_session_changes_nothing(start: Start) -> None:
    service = start(token="s3cret")
    board = Worker(service.fleet, token=make_token(service))
    board.call()
    thief = Worker(service.fleet, token=make_token(service), session=board.session, starting=False)
    with pytest.raises(grpc.RpcError) as refused:
        thief.call(WorkerState.OFFLINE)
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
    headers = {"Authorization": "Bearer s3cret"}
    [shown] = service.http.get("/v1/workers", headers=headers).json()["items"]
    assert shown["state"] == "ready"
    assert not board.call().fenced
    own_name = Worker(service.fleet, id="thief", token=thief.token, session=board.session)
    assert own_name.call().fenced, "it could report for the board's leases"


def test_a_second_board_of_the_same_name_waits_and_fences_nobody(service: Service) -> None:
    board = Worker(service.fleet, boot_id="boot-1")
    assert not board.call().fenced
    code, says = refusal(Worker(service.fleet, boot_id="boot-2"))
    assert (code, "another name with --name" in says) == (grpc.StatusCode.ABORTED, True)
    assert not board.call().fenced
    assert not Worker(service.fleet, boot_id="boot-1").call().fenced, "started again"


def test_the_workers_token_of_the_settings_lets_workers_in_and_nothing_else(start: Start) -> None:
    service = start(token="s3cret", worker_token="w0rker")
    board = Worker(service.fleet, token="w0rker")
    assert not board.call().fenced
    answer = service.http.get("/v1/workers", headers={"Authorization": "Bearer w0rker"})
    assert answer.status_code == 403
    headers = {"Authorization": "Bearer s3cret"}
    assert service.http.post("/v1/workers/board:evict", headers=headers).is_success
    code, _ = refusal(Worker(service.fleet, id="renamed", token="w0rker"))
    assert code is grpc.StatusCode.ALREADY_EXISTS
