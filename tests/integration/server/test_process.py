"""The server as a process: starting, refusing to start, stopping."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from core.exit_code import ExitCode
from proto.fleet_pb2_grpc import FleetStub
from server.main import main

from .conftest import Worker, free_port, onnx_model, wait_until

ROOT = Path(__file__).parents[3]
Run = Callable[..., subprocess.Popen[str]]
Refuse = Callable[..., str]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNEFARM_")}
    return kept | {
        "TUNEFARM_DATABASE_URL": f"sqlite:///{tmp_path}/tunefarm.db",
        "TUNEFARM_BROKER": str(tmp_path / "broker"),
        "TUNEFARM_PORT": str(free_port()),
        "TUNEFARM_GRPC_PORT": str(free_port()),
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture
def run(environment: dict[str, str]) -> Iterator[Run]:
    """Start server processes; those still running are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str, **changes: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "server", *flags]
        process = subprocess.Popen(
            command, env=environment | changes, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def refuse(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Refuse]:
    """Run a server's command that must fail to start; return its one line. It runs in this process, because a
    new one would import for seconds.
    """

    def refused(code: ExitCode, *flags: str, **changes: str) -> str:
        for name, value in (environment | changes).items():
            monkeypatch.setenv(name, value)
        assert main(flags) == code
        return the_line(capsys.readouterr().err)

    interval = sys.getswitchinterval()
    yield refused
    sys.setswitchinterval(interval)


def the_line(errors: str) -> str:
    (line,) = errors.splitlines()
    assert line.startswith("tunefarm server: ")
    return line


def answers(environment: dict[str, str]) -> bool:
    try:
        url = f"http://127.0.0.1:{environment['TUNEFARM_PORT']}/readyz"
        return httpx.get(url, trust_env=False, verify=False).is_success
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_a_server_stops_at_once_when_told(run: Run, environment: dict[str, str]) -> None:
    process = run()
    wait_until(lambda: answers(environment), 30)
    url = f"http://127.0.0.1:{environment['TUNEFARM_PORT']}"
    with httpx.Client(base_url=url, trust_env=False) as http:
        model = http.post("/v1/models", content=onnx_model()).json()["sha256"]
        job = http.post("/v1/jobs", json={"model": model, "trials": 1}).json()["id"]
        wait_until(lambda: any(Path(environment["TUNEFARM_BROKER"]).glob("*.msg")))
        ended: list[str] = []

        def watch() -> None:
            with http.stream("GET", f"/v1/jobs/{job}/events", timeout=30) as answer:
                list(answer.iter_bytes())
            ended.append("watcher")

        def wait_for_work() -> None:
            with grpc.insecure_channel(f"127.0.0.1:{environment['TUNEFARM_GRPC_PORT']}") as channel:
                Worker(FleetStub(channel)).call(wait_s=25)
            ended.append("worker")

        threads = [threading.Thread(target=target) for target in (watch, wait_for_work)]
        for thread in threads:
            thread.start()
        wait_until(lambda: bool(http.get("/v1/workers").json()["items"]))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert time.monotonic() - began < 4
        for thread in threads:
            thread.join(5)
    assert sorted(ended) == ["watcher", "worker"]


@pytest.mark.parametrize("variable", ["TUNEFARM_PORT", "TUNEFARM_GRPC_PORT"])
def test_a_port_in_use_is_named(refuse: Refuse, environment: dict[str, str], variable: str) -> None:
    with socket.create_server(("127.0.0.1", int(environment[variable]))):
        line = refuse(ExitCode.LOCAL)
    assert environment[variable] in line
    assert f"set {variable}" in line


def test_a_network_address_without_a_token_is_refused(run: Run) -> None:
    process = run("--host", "0.0.0.0")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == ExitCode.USAGE
    assert "TUNEFARM_TOKEN" in the_line(errors)


def test_an_address_of_another_machine_is_refused(refuse: Refuse) -> None:
    line = refuse(ExitCode.LOCAL, TUNEFARM_HOST="203.0.113.7", TUNEFARM_TOKEN="s3cret")
    assert "203.0.113.7" in line


@pytest.mark.parametrize(
    ("variable", "value"),
    [("TUNEFARM_PORT", "http"), ("TUNEFARM_DATABASE_URL", ""), ("TUNEFARM_BROKER", "")],
)
def test_wrong_settings_are_named(refuse: Refuse, variable: str, value: str) -> None:
    assert variable in refuse(ExitCode.USAGE, **{variable: value})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"TUNEFARM_TLS_CERT": "/gone.pem", "TUNEFARM_TLS_KEY": "/gone.key"}, "/gone.pem can't be read"),
        ({"TUNEFARM_TLS_CERT": __file__, "TUNEFARM_TLS_KEY": __file__}, "are no certificate and key"),
        ({"TUNEFARM_TLS_CERT": "/gone.pem"}, "TUNEFARM_TLS_KEY"),
    ],
)
def test_unusable_tls_files_are_named(refuse: Refuse, changes: dict[str, str], says: str) -> None:
    assert says in refuse(ExitCode.USAGE, **changes)


@pytest.mark.slow
def test_serving_a_network_in_clear_is_warned_of(run: Run, environment: dict[str, str]) -> None:
    process = run(TUNEFARM_HOST="0.0.0.0", TUNEFARM_TOKEN="s3cret")
    wait_until(lambda: answers(environment), 30)
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert "are sent in clear: set TUNEFARM_TLS_CERT" in errors
    assert "s3cret" not in errors


@pytest.mark.parametrize("kind", ["missing folder", "not a database", "not a URL"])
def test_a_database_that_cannot_be_used_is_named(refuse: Refuse, tmp_path: Path, kind: str) -> None:
    (tmp_path / "text.db").write_text("this is not a database " * 100)
    urls = {
        "missing folder": f"sqlite:///{tmp_path}/none/x.db",
        "not a database": f"sqlite:///{tmp_path}/text.db",
        "not a URL": "tunefarm.db",
    }
    assert "database" in refuse(ExitCode.LOCAL, TUNEFARM_DATABASE_URL=urls[kind])
