"""The tools of `tunefarm mcp`, called by a client of the protocol."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from core.exit_code import ExitCode
from core.job import JobState
from records.jobs import jobs, tasks
from records.jobs.tasks import TaskSpec
from tests.onnx_models import rectifier
from tunefarm.cli.app import app, run
from tunefarm.cli.mcp_server import mcp_server
from tunefarm.client.client import Client

from .conftest import Service, Worker, onnx_model

ROOT = Path(__file__).parents[3]


def call(service: Service, tool: str, **arguments: Any) -> Any:
    """Return a tool's result as JSON, or its message if it fails."""

    mcp: Any = pytest.importorskip("mcp")

    async def answer() -> Any:
        with Client(service.url) as client:
            async with mcp.Client(mcp_server(client)) as caller:
                return await caller.call_tool(tool, arguments)

    result = asyncio.run(answer())
    return result.content[0].text if result.is_error else result.structured_content


def test_a_job_is_submitted_watched_and_looked_into(service: Service, worker: Worker, tmp_path: Path) -> None:
    worker.call()
    file = tmp_path / "little.onnx"
    file.write_bytes(onnx_model())
    job = call(service, "submit", model=str(file), target=worker.device.key, minutes=5.0)
    assert (job["model_name"], job["minutes"], job["state"]) == ("little", 5.0, "queued")
    assert job["device_name"] is None, "no step of it has run"
    with service.database.begin() as session:
        tasks.put_workload(session, "w", "{}")
        tasks.add_tasks(
            session, job["id"], [TaskSpec(job["id"], "w", "conv2d", 2, 1.0, True, "", (), layer="stem")]
        )
    assert call(service, "watch", job=job["id"], wait_s=0)["state"] == "queued"
    with service.database.begin() as session:
        jobs.set_device_class(session, job["id"], worker.device.key)
        assert jobs.advance(session, job["id"], {JobState.QUEUED}, JobState.DONE, 5.0)
    seen = call(service, "watch", job=job["id"][:-1])
    assert (seen["state"], seen["estimated_latency_s"]) == ("done", None)
    assert seen["device_name"] == worker.device.name
    (listed,) = call(service, "jobs", state="done")["result"]
    assert (listed["id"], listed["device_name"]) == (job["id"], worker.device.name)
    (subgraph,) = call(service, "subgraphs", job=job["id"])["result"]
    assert (subgraph["layer"], subgraph["weight"]) == ("stem", 2)
    assert [one["key"] for one in call(service, "devices")["result"]] == [worker.device.key]


def test_nothing_but_a_model_leaves_the_machine(service: Service, tmp_path: Path) -> None:
    """An assistant may be made to ask for any file."""
    secret = tmp_path / "id_ed25519"
    secret.write_text("-----BEGIN OPENSSH PRIVATE KEY-----")
    (tmp_path / "weights.bin").symlink_to("/etc/passwd")
    stranger = tmp_path / "stranger.onnx"
    stranger.write_bytes(rectifier("weights.bin"))
    refusals = {
        secret: "not an ONNX file",
        Path("/dev/zero"): "is no regular file",
        stranger: "weights in weights.bin, which is not beside it",
    }
    for path, message in refusals.items():
        assert message in call(service, "submit", model=str(path))
    assert service.http.get("/v1/jobs").json()["items"] == []
    assert "POST /v1/models" not in service.http.get("/v1/audit").text


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("submit", {"model": "/nowhere/model.onnx"}, "there is no file /nowhere/model.onnx: check the path"),
        ("submit", {"model": "/nowhere/model.onnx", "trials": 0}, "a job has at least one trial, not 0"),
        ("watch", {"job": "nobody"}, "nobody"),
        ("compare", {"first": "a", "second": "b"}, "no job"),
        ("best", {"workload": "unknown"}, "device"),
    ],
)
def test_a_tool_that_fails_says_why(
    service: Service, tool: str, arguments: dict[str, str], message: str
) -> None:
    assert message in call(service, tool, **arguments)


def test_the_command_speaks_over_standard_input_and_output(service: Service) -> None:
    mcp: Any = pytest.importorskip("mcp")
    command = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "tunefarm", "mcp", "--server", service.url], cwd=str(ROOT)
    )

    async def names() -> set[str]:
        async with mcp.Client(command) as caller:
            return {tool.name for tool in (await caller.list_tools()).tools}

    assert {"submit", "watch", "best", "compare"} <= asyncio.run(names())


def test_a_service_that_is_gone_or_refuses_the_token_ends_the_command(
    guarded: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("tunefarm.cli.mcp_server.mcp_server", lambda client: pytest.fail("it serves"))
    with socket.create_server(("127.0.0.1", 0)) as silent, monkeypatch.context() as patches:
        patches.setattr("tunefarm.cli.mcp_server.CHECK_TIMEOUT_S", 0.1)
        for port in (1, silent.getsockname()[1]):
            assert run(app, ["mcp", "--server", f"http://127.0.0.1:{port}"]) == ExitCode.UNREACHABLE
            shown = capsys.readouterr()
            assert shown.out == "", "standard output is the protocol's"
            assert f"no tunefarm service answers at http://127.0.0.1:{port}" in shown.err
            assert "start one with `tunefarm up`, or check --server" in shown.err
    monkeypatch.setenv("TUNEFARM_TOKEN", "wrong")
    assert run(app, ["mcp", "--server", guarded.url]) == ExitCode.REFUSED
    shown = capsys.readouterr()
    assert (shown.out, "token" in shown.err) == ("", True)


def test_the_missing_package_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(app, ["mcp"]) == ExitCode.LOCAL
    assert "pip install 'tunefarm[mcp]'" in capsys.readouterr().err
