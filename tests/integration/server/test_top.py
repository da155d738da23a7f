"""`tunefarm top` on a real server."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest
from rich.console import Console

from core.exit_code import ExitCode
from core.job import UNFINISHED, JobState
from records.jobs import jobs, tasks
from records.jobs.jobs import OnnxRuntime
from tests.marks import slow_lane_except
from tests.unit.records.farm import put_measured, record, task_spec
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
    assert lines[0] == "job model state trials trials/s estimate vs. ONNX Runtime time left message"
    assert lines[1].startswith(f"{tuning} relu tuning 5/10 0.5 - - ")
    assert lines[2].startswith(f"{waiting} relu queued 0/10 - - - -")
    assert not any(done in line for line in lines)
    assert any(line.startswith("board connected") for line in lines)


def test_a_job_that_is_tuned_is_compared_with_onnx_runtime_by_an_estimate(
    service: Service, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    worker.call()
    job_id = service.submit()
    with service.database.begin() as session:
        jobs.set_device_class(session, job_id, worker.device.key)
        jobs.advance(session, job_id, UNFINISHED, JobState.TUNING, 1.0)
        jobs.set_onnxruntime(session, job_id, OnnxRuntime("1.31.1", (6e-3,)))
        tasks.put_workload(session, "w1", "{}")
        tasks.add_tasks(session, job_id, [task_spec(job_id)])
        put_measured(session, record("t", 1e-3))
    (listed,) = service.http.get("/v1/jobs", params={"state": "tuning"}).json()["items"]
    assert listed["estimated_latency_s"] == pytest.approx(3e-3), "its only subgraph occurs three times"
    assert run(app, ["jobs", "--server", service.url]) == ExitCode.OK
    assert "about 2.00x" in capsys.readouterr().out
    with Client(service.url) as client:
        assert " 3 ms about 2.00x " in " ".join(drawn(Screen(client)).split())
    with service.database.begin() as session:
        jobs.advance(session, job_id, UNFINISHED, JobState.DONE, 2.0)
    assert service.http.get(f"/v1/jobs/{job_id}").json()["estimated_latency_s"] is None


def test_the_list_of_jobs_is_filtered(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*flags: str) -> str:
        assert run(app, ["jobs", "--server", service.url, *flags]) == ExitCode.OK
        return capsys.readouterr().out

    assert listed() == "no job yet: start one with `tunefarm tune MODEL`\n"
    first, second = service.submit(), service.submit()
    service.http.patch(f"/v1/jobs/{first}", json={"tags": ["night"], "notes": "before it was pruned"})
    service.http.post(f"/v1/jobs/{second}:cancel")
    chosen = {
        (): [second, first],
        ("--tag", "night"): [first],
        ("--search", "PRUNED relu"): [first],
        ("--state", "cancelled"): [second],
    }
    for flags, ids in chosen.items():
        assert [job["id"] for job in json.loads(listed(*flags, "--json"))] == ids
    assert listed("--state", "done") == "no job matches\n"


@pytest.mark.parametrize("kind", ["release", "token", "webhook"])
def test_an_empty_list_says_how_to_fill_it(
    kind: str, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, [kind, "list", "--server", service.url]) == ExitCode.OK
    assert f"with `tunefarm {kind} " in capsys.readouterr().out
    assert run(app, [kind, "list", "--server", service.url, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.slow
@pytest.mark.parametrize("columns", slow_lane_except([80, 40], 40))
@pytest.mark.parametrize("command", [["top"], ["jobs", "--live"], ["workers", "--live"]], ids=" ".join)
def test_live_tables_fit_a_terminal(
    service: Service, worker: Worker, columns: int, command: list[str]
) -> None:
    worker.call()
    job_id = service.submit()
    with service.database.begin() as session:
        jobs.advance(
            session, job_id, UNFINISHED, JobState.TUNING, 1.0, message="measuring 17 candidates " * 9
        )
    screen = on_terminal([*command, "--server", service.url], columns, until=r"(?s)(board|relu).*\1")
    assert "\x1b[3" not in screen, "no colours"
    # Codes that move the cursor begin another line.
    lines = re.sub(r"\x1b\[[?\d;]*[A-Za-z]|\r", "\n", re.sub(r"\x1b\[[\d;]*m", "", screen)).splitlines()
    assert max(map(len, lines)) <= columns
    drawn = [line for line in lines if line.startswith(("job", "model"))]
    assert all("message" not in line or columns == 80 for line in drawn)
    if command != ["workers", "--live"]:
        assert sum(bool(re.search(r"relu +tuning", line)) for line in lines) == len(drawn) > 0
    if command != ["jobs", "--live"]:
        titles = sum(line.startswith("name") for line in lines)
        assert sum(line.startswith("board") for line in lines) == titles > 0


def on_terminal(arguments: Sequence[str], columns: int, until: str) -> str:
    """Return what a command of `tunefarm` writes to a terminal until that matches a pattern."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    with subprocess.Popen(
        [sys.executable, "-m", "tunefarm", *arguments], stdin=its, stdout=its, stderr=its, env=environment
    ) as process:
        os.close(its)
        written = ""
        while not re.search(until, written):
            written += os.read(mine, 65536).decode()
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal was closed
            while more := os.read(mine, 65536).decode():
                written += more
        assert process.wait() == 0
    os.close(mine)
    return written


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
