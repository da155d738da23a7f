"""Access control: every route and every procedure, with tokens of every kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from core.tokens import Scope
from proto import fleet_pb2 as pb
from records import access
from records.access import Token
from records.storage.database import Database
from server.access.authentication import TOKEN_PREFIX, token_digest
from server.access.scopes import OPEN_PATHS, ROUTES, operation_of
from server.app import create_app
from server.context import ServerContext
from server.settings import ServerSettings

from .conftest import BOOTSTRAP, Service, Start, Worker, bearer, launch, onnx_model, wait_until

# Not in the OpenAPI document, because it is the document.
UNDOCUMENTED = ("GET", "/openapi.json")


def routes() -> list[tuple[str, str]]:
    """Return method and path of every operation of the application."""
    settings = ServerSettings(database_url="sqlite://", broker="none")
    context = ServerContext(settings, Database("sqlite://"), lambda *_: None, time.time, lambda: "id")
    paths = create_app(context).openapi()["paths"]
    documented = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return sorted([*documented, UNDOCUMENTED])


GUARDED = [(method, path) for method, path in routes() if path not in OPEN_PATHS]


def made(service: Service, *scopes: Scope, name: str = "test", secret: str = BOOTSTRAP) -> dict[str, str]:
    """Have the service make a token; return its answer."""
    body = {"name": name, "scopes": list(scopes)}
    answer = service.http.post("/v1/tokens", json=body, headers=bearer(secret))
    assert answer.status_code == 201, answer.text
    token: dict[str, str] = answer.json()
    return token


def stored(service: Service, name: str, **changes: Any) -> str:
    """Store a token in the database; return its secret."""
    secret = TOKEN_PREFIX + name.ljust(43, "_")
    token = Token(f"id of {name}", name, frozenset(Scope), 1.0)
    with service.database.begin() as session:
        access.add_token(session, replace(token, **changes), token_digest(secret))
    return secret


def audit(service: Service, **query: str) -> list[dict[str, object]]:
    answer = service.http.get("/v1/audit", params=query, headers=bearer(BOOTSTRAP))
    assert answer.is_success, answer.text
    lines: list[dict[str, object]] = answer.json()["items"]
    return lines


def kind(answer: httpx.Response, status: int) -> str:
    """Return the kind of problem of an answer that must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["type"]).removeprefix("urn:tunefarm:problem:")


def filled(path: str) -> str:
    return path.replace("{job_id}", "x").replace("{worker_id}", "x").replace("{token_id}", "x")


def test_the_table_names_every_route_and_no_other() -> None:
    answered = {f"{method} {path}" for method, path in GUARDED}
    assert {operation_of(method, path).route for method, path in GUARDED} == answered
    assert {route.replace(":path}", "}") for route in ROUTES} == answered


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_no_route_answers_without_credentials(guarded: Service, method: str, path: str) -> None:
    for headers in ({}, bearer("wrong"), bearer(TOKEN_PREFIX + "x" * 43)):
        answer = guarded.http.request(method, filled(path), headers=headers)
        assert kind(answer, 401) == "token-needed"
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_every_route_needs_its_scope_and_no_other(guarded: Service, method: str, path: str) -> None:
    needed = operation_of(method, path).scope
    if needed is None:
        answers = [
            guarded.http.request(method, path, headers=bearer(made(guarded, scope)["token"]))
            for scope in Scope
        ]
        assert {answer.status_code for answer in answers} == {200}
        return
    others = [scope for scope in Scope if scope not in (needed, Scope.ADMIN)]
    refused = guarded.http.request(method, filled(path), headers=bearer(made(guarded, *others)["token"]))
    assert kind(refused, 403) == "scope-missing"
    assert f"lacks the scope {needed}" in refused.json()["detail"]
    for scope in (needed, Scope.ADMIN):
        answer = guarded.http.request(method, filled(path), headers=bearer(made(guarded, scope)["token"]))
        assert answer.status_code not in (401, 403, 500), answer.text


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "PROPFIND"])
def test_an_unknown_route_needs_an_administrator(guarded: Service, method: str) -> None:
    others = bearer(made(guarded, Scope.READ, Scope.SUBMIT, Scope.WORKER)["token"])
    assert kind(guarded.http.request(method, "/v2/new", headers=others), 403) == "scope-missing"
    answer = guarded.http.request(method, "/v2/new", headers=bearer(BOOTSTRAP))
    assert answer.status_code == 404


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_probes_are_open_to_everybody(guarded: Service, path: str) -> None:
    assert guarded.http.get(path).json() == {"status": "ok"}


def test_a_token_is_shown_once(guarded: Service) -> None:
    token = made(guarded, Scope.READ, Scope.SUBMIT, name="ci")
    assert token["token"].startswith(TOKEN_PREFIX)
    assert len(token["token"]) == len(TOKEN_PREFIX) + 43
    listed = guarded.http.get("/v1/tokens", headers=bearer(BOOTSTRAP)).json()["items"]
    (shown,) = [one for one in listed if one["id"] == token["id"]]
    assert (shown["name"], shown["scopes"], shown["state"]) == ("ci", ["read", "submit"], "active")
    assert "token" not in shown
    assert token["token"] not in str(listed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": []},
        {"scopes": ["root"]},
        {"name": ""},
        {"name": "a\0b"},
        {"expires_after_s": 0},
        {"expires_after_s": -5},
        {"expires_after_s": 1e300},
        {"expires_after_s": "soon"},
        {"owner": "me"},
    ],
)
def test_an_invalid_token_is_not_made(guarded: Service, wrong: dict[str, object]) -> None:
    body = {"name": "x", "scopes": ["read"]} | wrong
    answer = guarded.http.post("/v1/tokens", json=body, headers=bearer(BOOTSTRAP))
    assert kind(answer, 422) == "invalid-request"


def test_an_expired_token_says_so(guarded: Service) -> None:
    secret = stored(guarded, "expired", expires_at=2.0)
    answer = guarded.http.get("/v1/jobs", headers=bearer(secret))
    assert kind(answer, 401) == "token-expired"
    assert "invalid_token" in answer.headers["www-authenticate"]
    listed = guarded.http.get("/v1/tokens", headers=bearer(BOOTSTRAP)).json()["items"]
    assert {one["id"]: one["state"] for one in listed}["id of expired"] == "expired"


def test_a_revoked_token_is_refused_at_once(guarded: Service) -> None:
    token = made(guarded, Scope.READ)
    assert guarded.http.get("/v1/jobs", headers=bearer(token["token"])).is_success
    for _ in range(2):
        revoked = guarded.http.delete(f"/v1/tokens/{token['id']}", headers=bearer(BOOTSTRAP))
        assert revoked.json()["state"] == "revoked"
    assert kind(guarded.http.get("/v1/jobs", headers=bearer(token["token"])), 401) == "token-revoked"


def test_a_token_that_another_process_revoked_is_refused_soon(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.access.authentication.CACHE_S", 0.2)
    service = start(token=BOOTSTRAP)
    token = made(service, Scope.READ)
    assert service.http.get("/v1/jobs", headers=bearer(token["token"])).is_success
    with service.database.begin() as session:
        access.revoke_token(session, token["id"], time.time())
    wait_until(lambda: service.http.get("/v1/jobs", headers=bearer(token["token"])).status_code == 401)


def test_an_unknown_token_cannot_be_revoked(guarded: Service) -> None:
    answer = guarded.http.delete("/v1/tokens/nope", headers=bearer(BOOTSTRAP))
    assert kind(answer, 404) == "token-not-found"


def calls(service: Service, secret: str | None) -> list[Callable[[], object]]:
    metadata = () if secret is None else (("authorization", f"Bearer {secret}"),)
    fleet = service.fleet
    return [
        lambda: fleet.Synchronize(pb.SynchronizeRequest(), metadata=metadata, timeout=5),
        lambda: fleet.GetWorkload(pb.WorkloadRequest(), metadata=metadata, timeout=5),
        lambda: list(fleet.GetBlob(pb.BlobRequest(), metadata=metadata, timeout=5)),
    ]


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    return refused.value.code(), refused.value.details() or ""


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"expires_at": 2.0}, grpc.StatusCode.UNAUTHENTICATED, "this token has expired"),
        ({"scopes": frozenset({Scope.READ})}, grpc.StatusCode.PERMISSION_DENIED, "lacks the scope worker"),
    ],
)
def test_the_error_names_the_scope_that_a_workers_token_lacks(
    guarded: Service, changes: dict[str, object], code: grpc.StatusCode, says: str
) -> None:
    secret = stored(guarded, f"worker {code.name}".replace(" ", "-"), **changes)
    for call in calls(guarded, secret):
        found, details = refusal(call)
        assert (found, says in details) == (code, True)


@pytest.mark.parametrize("secret", [None, "wrong", TOKEN_PREFIX + "y" * 43])
def test_a_worker_without_a_token_is_refused(guarded: Service, secret: str | None) -> None:
    assert {refusal(call)[0] for call in calls(guarded, secret)} == {grpc.StatusCode.UNAUTHENTICATED}


def test_a_revoked_worker_is_refused(guarded: Service) -> None:
    token = made(guarded, Scope.WORKER)
    assert refusal(calls(guarded, token["token"])[1])[0] is grpc.StatusCode.NOT_FOUND
    guarded.http.delete(f"/v1/tokens/{token['id']}", headers=bearer(BOOTSTRAP))
    code, details = refusal(calls(guarded, token["token"])[1])
    assert (code, details) == (grpc.StatusCode.UNAUTHENTICATED, "this token was revoked")


def test_a_worker_with_its_scope_is_let_through(guarded: Service) -> None:
    codes = [refusal(call)[0] for call in calls(guarded, made(guarded, Scope.WORKER)["token"])]
    assert codes[1:] == [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.NOT_FOUND]
    assert codes[0] in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


def test_a_message_that_cannot_be_parsed_is_refused(guarded: Service) -> None:
    for secret, code in (
        (BOOTSTRAP, grpc.StatusCode.INVALID_ARGUMENT),
        ("wrong", grpc.StatusCode.UNAUTHENTICATED),
    ):
        with grpc.insecure_channel(f"127.0.0.1:{guarded.context.settings.grpc_port}") as channel:
            raw: Any = channel.unary_unary("/tunefarm.v1.Fleet/Synchronize")
            metadata = (("authorization", f"Bearer {secret}"),)
            assert refusal(partial(raw, b"\xff" * 9, metadata=metadata))[0] is code


def test_changes_are_audited_with_caller_action_and_address(guarded: Service) -> None:
    token = made(guarded, Scope.SUBMIT)
    headers = bearer(token["token"])
    sha = guarded.http.post("/v1/models", content=onnx_model(), headers=headers).json()["sha256"]
    body = {"model": sha, "trials": 1}
    job = guarded.http.post("/v1/jobs", json=body, headers=headers).json()["id"]
    guarded.http.post(f"/v1/jobs/{job}:cancel", headers=headers)
    guarded.http.post("/v1/jobs", json={}, headers=headers)
    lines = [line for line in audit(guarded) if line["who"] == token["id"]]
    assert [(line["action"], line["subject"], line["outcome"]) for line in reversed(lines)] == [
        ("POST /v1/models", sha, "201"),
        ("POST /v1/jobs", job, "202"),
        ("POST /v1/jobs/{job_id}:cancel", job, "200"),
        ("POST /v1/jobs", "", "422"),
    ]
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    (creation,) = [line for line in audit(guarded) if line["subject"] == token["id"]]
    assert (creation["who"], creation["action"]) == ("bootstrap", "POST /v1/tokens")


def test_refusals_are_audited_as_a_count(start: Start) -> None:
    service = start(token=BOOTSTRAP, failure_limit="off")
    reader = made(service, Scope.READ)
    for _ in range(5):
        service.http.get("/v1/jobs", headers=bearer("wrong"))
        service.http.post("/v1/jobs", json={}, headers=bearer(reader["token"]))
    refused = {(line["who"], line["action"]): line for line in audit(service) if line["outcome"] != "201"}
    assert {key: (line["outcome"], line["times"]) for key, line in refused.items()} == {
        ("nobody", "GET /v1/jobs"): ("401 token-needed", 5),
        (reader["id"], "POST /v1/jobs"): ("403 scope-missing", 5),
    }


def test_a_workers_calls_are_a_line_a_day(start: Start) -> None:
    service = start(token=BOOTSTRAP)
    token = made(service, Scope.WORKER)
    for _ in range(3):
        for call in calls(service, token["token"]):
            refusal(call)
    lines = [line for line in audit(service) if line["who"] == token["id"]]
    assert sorted(str(line["action"]) for line in lines) == [
        "Fleet/GetBlob",
        "Fleet/GetWorkload",
        "Fleet/Synchronize",
    ]


def test_the_audit_log_is_read_by_page(start: Start) -> None:
    service = start()
    ids = [service.submit() for _ in range(3)]
    seen, before = [], None
    while True:
        query = {"limit": 2} if before is None else {"limit": 2, "before": before}
        page = service.http.get("/v1/audit", params=query).json()
        seen += [line["subject"] for line in page["items"] if line["action"] == "POST /v1/jobs"]
        before = page["next"]
        if before is None:
            break
    assert seen == ids[::-1]


def test_a_loopback_server_needs_no_token(service: Service, worker: Worker) -> None:
    worker.call()
    service.submit()
    assert service.http.get("/v1/tokens", headers=bearer("whatever")).is_success
    assert {line["who"] for line in audit(service)} == {"loopback"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8760"},
        {"Host": "evil.example"},
        {"Host": "["},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1.evil.example"},
    ],
)
def test_a_web_page_cannot_call_through_its_visitors_browser(
    service: Service, headers: dict[str, str]
) -> None:
    answer = service.http.post("/v1/models", content=onnx_model(), headers=headers)
    assert kind(answer, 403) == "not-from-here"
    assert service.http.get("/v1/jobs", headers={"Host": "localhost:1"}).is_success
    own = {"Host": "localhost:1", "Origin": "http://localhost:1"}
    assert service.http.post("/v1/models", content=onnx_model(), headers=own).is_success


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:1", "//"])
def test_a_page_of_another_port_of_this_machine_changes_nothing(service: Service, origin: str) -> None:
    job_id = service.submit()
    for method, path in (("DELETE", f"/v1/jobs/{job_id}"), ("POST", f"/v1/jobs/{job_id}:cancel")):
        answer = service.http.request(method, path, headers={"Origin": origin})
        assert kind(answer, 403) == "not-from-here"
    assert service.http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"


def test_each_token_has_idempotency_keys_of_its_own(guarded: Service) -> None:
    owners = [BOOTSTRAP]
    for _ in range(2):
        token: dict[str, Any] = {"name": "x", "scopes": ["submit", "read"]}
        made = guarded.http.post("/v1/tokens", json=token, headers=bearer(BOOTSTRAP))
        owners.append(made.json()["token"])
    model = guarded.http.post("/v1/models", content=onnx_model(), headers=bearer(BOOTSTRAP)).json()
    made_jobs = []
    for trials, owner in enumerate(owners, start=10):
        body = {"model": model["sha256"], "trials": trials}
        headers = bearer(owner) | {"Idempotency-Key": "nightly"}
        answers = [guarded.http.post("/v1/jobs", json=body, headers=headers) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].json()["id"] == answers[1].json()["id"]
        made_jobs.append(answers[0].json()["id"])
    assert len(set(made_jobs)) == 3


def test_too_many_requests_of_one_client_have_to_wait(start: Start) -> None:
    service = start(token=BOOTSTRAP, rate_limit="3/minute")
    one, other = stored(service, "one"), stored(service, "other")
    answers = [service.http.get("/v1/jobs", headers=bearer(one)) for _ in range(4)]
    assert [answer.status_code for answer in answers[:3]] == [200] * 3
    assert kind(answers[3], 429) == "too-many-requests"
    assert 1 <= int(answers[3].headers["retry-after"]) <= 60
    assert service.http.get("/v1/jobs", headers=bearer(other)).is_success
    assert service.http.get("/healthz").is_success


def test_wrong_tokens_are_limited_and_lock_no_valid_token_out(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.access.authentication.CACHE_S", 0.2)
    service = start(token=BOOTSTRAP, failure_limit="3/minute")
    used, unused = stored(service, "used"), stored(service, "unused")
    expired = stored(service, "expired", expires_at=2.0)
    assert service.http.get("/v1/jobs", headers=bearer(used)).is_success
    answers = [service.http.get("/v1/jobs", headers=bearer(TOKEN_PREFIX + "x" * 43)) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 429]
    time.sleep(0.3)  # the token used before is cached no longer
    for secret in (used, unused, BOOTSTRAP):
        assert service.http.get("/v1/jobs", headers=bearer(secret)).is_success
        assert refusal(calls(service, secret)[1])[0] is grpc.StatusCode.NOT_FOUND
    for secret in (expired, "wrong"):
        assert kind(service.http.get("/v1/jobs", headers=bearer(secret)), 429) == "too-many-requests"
    assert refusal(calls(service, "wrong")[0])[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    made_later = stored(service, "made-later")
    wait_until(lambda: service.http.get("/v1/jobs", headers=bearer(made_later)).is_success)


def test_secrets_stand_in_no_file_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service, stop = launch(tmp_path, token=BOOTSTRAP)
    token = made(service, Scope.SUBMIT)["token"]
    service.http.post("/v1/models", content=onnx_model(), headers=bearer(token))
    service.http.get("/v1/jobs", headers=bearer(token))
    service.http.get("/v1/jobs", headers=bearer("a wrong one"))
    refusal(calls(service, token)[0])
    assert audit(service)
    stop()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert token_digest(token).encode() in kept
    for secret in (token, BOOTSTRAP, "a wrong one"):
        assert secret.encode() not in kept
        assert secret not in caplog.text
