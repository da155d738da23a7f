"""`tunefarm top` on a real server."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from core.exit_code import ExitCode
from core.job import UNFINISHED, JobState
from records.jobs import jobs
from tunefarm.cli.app import app, run
from tunefarm.cli.top import Screen
from tunefarm.client import Client

from .conftest import Service, Worker


def drawn(screen: Screen) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(screen.draw())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_unfinished_jobs_and_workers_are_drawn_with_the_rate_of_trials(
    service: Service, worker: Worker
) -> None:
    moments = iter([0.0, 0.0, 10.0, 10.0])
    with Client(service.url) as client:
        screen = Screen(client, lambda: next(moments))
        assert "no job is unfinished" in drawn(screen)
        assert "no worker has connected yet" in drawn(screen)
        worker.call()
        waiting, tuning, done = (service.submit() for _ in range(3))
        with service.database.begin() as session:
            jobs.advance(session, tuning, UNFINISHED, JobState.TUNING, 1.0)
            jobs.set_expected_end(session, tuning, service.context.now() + 3600)
            jobs.advance(session, done, UNFINISHED, JobState.CANCELLED, 1.0)
        drawn(screen)
        with service.database.begin() as session:
            jobs.count(session, tuning, issued=5, done=5)
        lines = [" ".join(line.split()) for line in drawn(screen).splitlines()]
    assert lines[0] == "job model state trials trials/s estimate time left message"
    assert lines[1].startswith(f"{tuning} relu tuning 5/10 0.5 - ")
    assert lines[2].startswith(f"{waiting} relu queued 0/10 - - -")
    assert not any(done in line for line in lines)
    assert any(line.startswith("board connected") for line in lines)


def test_top_prints_json_once_or_needs_a_terminal(
    service: Service, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.call()
    job_id = service.submit()
    assert run(app, ["top", "--server", service.url, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [job["id"] for job in found["jobs"]] == [job_id]
    assert [one["id"] for one in found["workers"]] == ["board"]
    assert run(app, ["top", "--server", service.url]) == ExitCode.USAGE
    assert "tunefarm top needs a terminal: use --json" in capsys.readouterr().err
