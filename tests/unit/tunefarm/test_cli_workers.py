"""`tunefarm workers`: the list of workers, and the commands that drain, resume, evict and calibrate one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from core.exit_code import ExitCode
from tests.unit.tunefarm.fake_service import WORKER, FakeService, serving
from tunefarm.cli.app import app, run
from tunefarm.cli.options import time_text

WHOLE = WORKER | {
    "id": "pi",
    "desired_state": "work",
    "connected": True,
    "state": "busy",
    "cores": 4,
    "last_seen_ago_s": 3.2,
    "failures": 5,
    "failures_by_kind": {"build_error": 1, "run_timeout": 4},
    "trials_per_minute": 41.26,
    "load": 3.96,
    "temperature_c": 61.4,
    "memory_free_bytes": 1 << 30,
    "tunefarm_version": "0.1.0",
    "tvm_version": "0.27.0",
    "lease": "0123456789abcdef",
    "candidates": 16,
    "candidates_done": 5,
}


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "TOKEN"):
        monkeypatch.delenv(f"TUNEFARM_{name}", raising=False)
    monkeypatch.setenv("TUNEFARM_CONFIG", str(tmp_path / "no config.toml"))
    monkeypatch.setenv("TUNEFARM_DATA", str(tmp_path / "data"))


@pytest.fixture
def fake() -> Iterator[FakeService]:
    with serving(FakeService()) as service:
        yield service


def line(fake: FakeService, capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    """Return what is shown of a worker."""
    fake.workers[:] = [WHOLE | changes]
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    head, shown = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["name", "state", "device"]
    return shown.rstrip()


def test_a_worker_is_shown_in_one_line(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    shown = line(fake, capsys)
    parts = ("pi", "connected", "a board", "cafe", "4", "4.0", "61 °C", "41.3", "3 s ago")
    assert all(part in shown for part in parts), shown
    assert "5 (run timeout 4, build error 1)" in shown
    assert shown.endswith("lease 01234567: 5 of 16")


@pytest.mark.parametrize(
    ("changes", "state", "does"),
    [
        ({"connected": False}, "lost", "-"),
        ({"connected": False, "state": "offline"}, "away", "-"),
        ({"desired_state": "evicted", "state": "draining"}, "evicted", "-"),
        ({"lease": None, "state": "ready"}, "connected", "waits for work"),
        ({"lease": None, "state": "probing"}, "connected", "probes the device"),
        ({"lease": None, "state": "draining", "desired_state": "drain"}, "connected", "drained"),
        ({"lease": None, "state": "draining"}, "connected", "stops"),
        ({"desired_state": "drain", "state": "draining"}, "connected", "drains, lease 01234567: 5 of 16"),
        ({"candidates": None}, "connected", "lease 01234567"),
    ],
)
def test_a_workers_state_and_activity_are_shown(
    fake: FakeService,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    state: str,
    does: str,
) -> None:
    shown = line(fake, capsys, **changes)
    assert shown.split()[1] == state
    assert shown.endswith(f" {does}")


def test_a_builder_is_shown_as_a_builder(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    builder = {"role": "build", "builds_for": ["x86_64", "aarch64"], "device_class": None}
    shown = line(fake, capsys, device_name=None, **builder)
    assert "builds for x86_64, aarch64" in shown


def test_what_a_worker_does_is_whole_in_80_columns(
    fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("tunefarm.cli.workers.stdout", lambda: terminal)
    fake.workers[:] = [WHOLE | {"load": 5.8, "trials_done": 46}]
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    assert isinstance(terminal.file, io.StringIO)
    row = terminal.file.getvalue().splitlines()[1]
    assert len(row) <= 80
    assert row.rstrip().endswith("lease 01234567: 5 of 16")


def test_values_that_an_older_service_does_not_send_are_dashes(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    _, shown = capsys.readouterr().out.splitlines()
    assert " ".join(shown.split()) == "w1 connected a board cafe - - - - 5 1 - waits for work"


def test_worker_names_are_not_parsed_as_markup(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    assert "[red]x[/red]" in line(fake, capsys, id="[red]x[/red]")


def test_without_workers_the_next_step_is_printed(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.workers.clear()
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    assert "start one with `tunefarm worker" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["drain", "resume", "evict"])
def test_a_worker_is_drained_resumed_and_evicted(
    fake: FakeService, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["workers", action, "a/board", "--server", fake.url]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("a/board ")
    assert run(app, ["workers", action, "a/board", "--server", fake.url, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["id"] == "w1"
    assert fake.acted == [f"/v1/workers/a%2Fboard:{action}"] * 2


def test_a_refusal_is_printed_in_the_services_words(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = {"status": 404, "title": "Worker not found", "detail": "There is no worker 'x'."}
    with serving(FakeService(refusal=refusal)) as fake:
        assert run(app, ["workers", "drain", "x", "--server", fake.url]) == ExitCode.REFUSED
    assert capsys.readouterr().err == "tunefarm: There is no worker 'x'.\n"


def test_options_before_the_subcommand_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["workers", "--server", "http://farm", "drain", "x"]) == ExitCode.USAGE
    assert "tunefarm workers drain NAME --server URL" in capsys.readouterr().err


def test_help_names_the_actions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["workers", "--help"]) == ExitCode.OK
    out = capsys.readouterr().out
    for action in ("drain", "resume", "evict"):
        assert f"\n  {action} " in out


def test_gaps_of_the_sandbox_are_printed_below_the_workers(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.workers[:] = [WHOLE | {"sandbox_gaps": "measured code runs as root: install it in /opt"}]
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    *_, told = capsys.readouterr().out.splitlines()
    assert told == "pi: measured code runs as root: install it in /opt"


@pytest.mark.parametrize(("role", "does"), [("measure", "can't measure"), ("build", "can't build")])
def test_a_workers_health_error_is_printed_below_the_worker(
    fake: FakeService, capsys: pytest.CaptureFixture[str], role: str, does: str
) -> None:
    why = "its check was ended by SIGILL (illegal instruction)"
    fake.workers[:] = [WHOLE | {"state": "probing", "lease": None, "health_error": why, "role": role}]
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    _, shown, told = capsys.readouterr().out.splitlines()
    assert shown.rstrip().endswith(f" {does}")
    assert told == f"pi {does}: {why}"


def test_the_health_error_of_a_worker_that_is_away_is_not_shown(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line(fake, capsys, connected=False, health_error="its check failed").endswith(" -")


PROFILE = {
    "hertz": 4.11e9,
    "multiply_adds": {"float32": 1.98, "int8": 2.0},
    "latency_cycles": 4.0,
    "registers": 32,
    "loads": 2.0,
    "gather_cycles": 0.5,
    "l1_rate": 127.4,
    "l2_rate": 48.2,
    "l3_rate": 22.0,
    "memory_rate": 6.3,
    "memory_rate_all": 9.0,
    "launch_s": 3.6e-6,
    "derived": ["registers", "l3_rate"],
}


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (
            PROFILE,
            "4.1 GHz, 2 x 512-bit multiply-adds, 32 registers, L1 127 / L2 48 / L3 ~22 / memory 6 B/cycle, "
            "launch 3.6 us",
        ),
        (None, "not calibrated, an ordinary core is assumed"),
    ],
)
def test_the_speeds_of_a_device_class_are_shown(
    fake: FakeService, capsys: pytest.CaptureFixture[str], profile: dict[str, Any] | None, said: str
) -> None:
    fake.workers[:] = [WHOLE, WHOLE | {"id": "twin"}]
    fake.device_classes[:] = [
        {"key": "cafe", "name": "a board", "cores": 4, "vector_bytes": 64} | {"profile": profile}
    ]
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[3:] == [f"class cafe, a board: {said}"]
    assert run(app, ["workers", "--server", fake.url, "--json"]) == ExitCode.OK
    assert [one["profile"] for one in json.loads(capsys.readouterr().out)] == [profile] * 2


def test_a_worker_is_asked_to_calibrate(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    fake.workers[:] = [WHOLE]
    assert run(app, ["calibrate", "pi", "--server", fake.url]) == ExitCode.OK
    assert fake.acted == ["/v1/workers/pi:calibrate"]
    assert capsys.readouterr().out == "pi measures its device's speeds once it holds no lease\n"


def test_a_worker_is_reserved_and_released(fake: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    fake.workers[:] = [WHOLE | {"reserved_for": "alice", "reserved_until": 1e9}]
    command = ["workers", "reserve", "pi", "--for", "alice", "--minutes", "90", "--server", fake.url]
    assert run(app, command) == ExitCode.OK
    until = time_text(1e9)
    ends = "`tunefarm workers unreserve pi` ends that"
    assert capsys.readouterr().out == f"pi is reserved for alice until {until}; {ends}\n"
    assert run(app, [*command, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["reserved_for"] == "alice"
    assert fake.reservations[-1] == {"minutes": 90.0, "holder": "alice"}
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    assert capsys.readouterr().out.endswith(f"\npi is reserved for alice until {until}\n")
    assert run(app, ["workers", "unreserve", "pi", "--server", fake.url]) == ExitCode.OK
    assert fake.acted == [*["/v1/workers/pi:reserve"] * 2, "/v1/workers/pi:unreserve"]


def test_a_worker_that_shares_its_cores_is_named(
    fake: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.workers[:] = [WHOLE | {"shares_with": ["pi-2"]}]
    assert run(app, ["workers", "--server", fake.url]) == ExitCode.OK
    *_, told = capsys.readouterr().out.splitlines()
    assert told.startswith(
        "pi measures in turns with pi-2, on the same hardware: stop one, or give each its own"
    )
