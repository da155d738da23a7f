"""Names that are markup, commands of a terminal or headers are shown as they are, by every command."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from core.exit_code import ExitCode
from core.job import UNFINISHED, JobState
from records.jobs import jobs, tasks
from records.jobs.tasks import TaskSpec
from tunefarm.cli.app import app, run

from .artifacts import artifact, publish
from .conftest import Service, Worker, onnx_model

# Rich ends with an error at a closing tag alone, and makes a link of the other.
MARKUP = "[/]net[link=http://evil.example]x[/link]:fire:"


@pytest.fixture
def markup(service: Service, worker: Worker) -> list[str]:
    """Two jobs whose models, subgraphs, tags, notes and release are named by markup."""
    worker.call()
    made = []
    for secs in (0.01, 0.02):
        job_id = publish(service, worker, artifact(), secs)
        made.append(job_id)
        with service.database.begin() as session:
            tasks.put_workload(session, "w", "{}")
            spec = TaskSpec(job_id, "w", MARKUP, 1, 1.0, False, MARKUP, (), layer=MARKUP)
            tasks.add_tasks(session, job_id, [spec])
    return made


def test_commands_print_markup_unchanged(
    service: Service, markup: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    monkeypatch.setenv("COLUMNS", "400")
    first = markup[0]
    for job_id in markup:
        changed = service.http.patch(f"/v1/jobs/{job_id}", json={"notes": MARKUP})
        assert changed.is_success, changed.text
        with service.database.begin() as session:
            jobs.set_message(session, job_id, MARKUP)
    put = service.http.put("/v1/releases/prod", json={"job": first})
    assert put.is_success, put.text
    asked: dict[str, Any] = {"name": MARKUP, "scopes": ["read"]}
    assert service.http.post("/v1/tokens", json=asked).is_success
    hook = {"url": "https://example.com/[/]", "events": ["job.finished"]}
    assert service.http.post("/v1/webhooks", json=hook).is_success
    commands = {
        ("jobs",): "",
        ("watch", first): MARKUP,
        ("token", "list"): MARKUP,
        ("webhook", "list"): "https://example.com/[/]",
        ("release", "list"): "prod",
        ("workers",): "",
    }
    for command, expected in commands.items():
        assert run(app, list(command)) == ExitCode.OK, (command, capsys.readouterr().err)
        shown = capsys.readouterr().out
        assert expected in shown, command


def test_model_names_are_shown_unchanged(
    service: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    monkeypatch.setenv("COLUMNS", "400")
    worker.call()
    stored = service.http.post("/v1/models", params={"name": MARKUP}, content=onnx_model(5))
    job_id = service.submit(model=stored.json()["sha256"])
    with service.database.begin() as session:
        jobs.advance(session, job_id, UNFINISHED, JobState.FAILED, 5.0, error=MARKUP)
    assert run(app, ["jobs"]) == ExitCode.OK
    assert MARKUP in capsys.readouterr().out


@pytest.mark.parametrize("name", ['x"\r\nSet-Cookie: a=b', "x\x1b[2J", "\u202egnp.exe", "a\nb"])
def test_no_name_becomes_a_header_or_a_command(service: Service, worker: Worker, name: str) -> None:
    worker.call()
    job_id = publish(service, worker, artifact(), 0.01)
    for method, path, body in (
        ("PUT", f"/v1/releases/{quote(name, safe='')}", {"job": job_id}),
        ("PATCH", f"/v1/jobs/{job_id}", {"tags": [name]}),
        ("POST", "/v1/tokens", {"name": name, "scopes": ["read"]}),
    ):
        answer = service.http.request(method, path, json=body)
        assert answer.status_code in (400, 404, 422), (path, answer.text)
    service.http.patch(f"/v1/jobs/{job_id}", json={"notes": name})
    for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/artifact", "/v1/releases"):
        answer = service.http.get(path)
        assert answer.is_success
        assert "set-cookie" not in answer.headers
        assert "\x1b" not in answer.text
