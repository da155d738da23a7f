"""Webhooks are made, listed and deleted over HTTP and by the command."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from core.exit_code import ExitCode
from core.webhook import MAX_WEBHOOKS
from tunefarm.cli.app import app, run

from .artifacts import publish
from .conftest import Service, Start, Worker, bearer

BOOTSTRAP = "the bootstrap token"
ASKED: dict[str, Any] = {"url": "https://example.com/hook", "events": ["job.finished", "artifact.faster"]}


def test_a_webhook_is_made_listed_and_deleted(service: Service, worker: Worker) -> None:
    made = service.http.post("/v1/webhooks", json=ASKED)
    assert made.status_code == 201, made.text
    body = made.json()
    secret = body.pop("secret")
    assert 24 <= len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) <= 64
    listed = service.http.get("/v1/webhooks")
    assert listed.json() == {"items": [body]}
    assert secret not in listed.text
    path = f"/v1/webhooks/{body['id']}"
    assert service.http.get(f"{path}/deliveries").json() == {"items": []}
    worker.call()
    job_id = publish(service, worker, b"data", 1e-3)
    (delivery,) = service.http.get(f"{path}/deliveries").json()["items"]
    assert (delivery["event"], delivery["state"], delivery["attempts"]) == ("job.finished", "pending", 0)
    told = json.loads(delivery["body"])["data"]
    assert (told["job"], told["device_name"]) == (job_id, worker.device.name)
    assert service.http.delete(path).status_code == 204
    for method, address in (("DELETE", path), ("GET", f"{path}/deliveries")):
        answer = service.http.request(method, address)
        assert (answer.status_code, answer.json()["type"]) == (404, "urn:tunefarm:problem:webhook-not-found")


def test_an_invalid_webhook_is_refused(service: Service) -> None:
    changes: list[dict[str, Any]] = [
        {"url": "ftp://example.com"},
        {"url": "https://user:secret@example.com"},
        {"url": 3},
        {"events": []},
        {"events": ["no.such"]},
        {"events": ["job.finished"] * 100},
        {"secret": "mine"},
    ]
    for change in changes:
        assert service.http.post("/v1/webhooks", json=ASKED | change).status_code == 422, change
    for _ in range(MAX_WEBHOOKS):
        assert service.http.post("/v1/webhooks", json=ASKED).is_success
    full = service.http.post("/v1/webhooks", json=ASKED)
    assert (full.status_code, full.json()["type"]) == (409, "urn:tunefarm:problem:too-many-webhooks")


def test_only_administrators_see_webhooks_and_changes_are_logged(start: Start) -> None:
    service = start(token=BOOTSTRAP)
    admin = bearer(BOOTSTRAP)
    asked = {"name": "ci", "scopes": ["read", "submit"]}
    other = bearer(service.http.post("/v1/tokens", headers=admin, json=asked).json()["token"])
    for method in ("GET", "POST"):
        assert service.http.request(method, "/v1/webhooks", headers=other).status_code == 403
    made = service.http.post("/v1/webhooks", headers=admin, json=ASKED).json()
    service.http.delete(f"/v1/webhooks/{made['id']}", headers=admin)
    text = service.http.get("/v1/audit", headers=admin).text
    lines = [(line["action"], line["subject"]) for line in json.loads(text)["items"]]
    assert ("POST /v1/webhooks", made["id"]) in lines
    assert ("DELETE /v1/webhooks/{webhook_id}", made["id"]) in lines
    assert made["secret"] not in text


def test_the_command_makes_lists_and_deletes(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    create = ["webhook", "create", "https://example.com", "--event", "job.finished"]
    assert run(app, create) == ExitCode.OK
    made = capsys.readouterr()
    assert made.out.startswith("whsec_")
    assert made.out.strip() not in made.err
    assert run(app, ["webhook", "list", "--json"]) == ExitCode.OK
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["url"], listed["events"]) == ("https://example.com", ["job.finished"])
    for command in (["webhook", "list"], ["webhook", "deliveries", listed["id"]]):
        assert run(app, command) == ExitCode.OK
    capsys.readouterr()
    assert run(app, ["webhook", "delete", listed["id"]]) == ExitCode.OK
    assert run(app, ["webhook", "delete", listed["id"]]) == ExitCode.REFUSED
    assert "There is no webhook" in capsys.readouterr().err
    assert run(app, ["webhook", "create", "file:///x", "--event", "job.finished"]) == ExitCode.BAD_INPUT
