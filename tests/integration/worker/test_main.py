"""`python -m worker` as deployed: a separate process whose child measures with TVM."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import psutil
import pytest

from compiler.target import detect_device
from compiler.workload import to_json
from core.exit_code import ExitCode
from core.worker import WorkerState
from tests import workloads
from tests.integration.worker.fake_fleet import FakeFleet
from tests.processes import OWN_PROFILES
from worker.main import main

PACKAGES = Path(__file__).resolve().parents[3]
# The trace that leaves a workload as it is.
UNTOUCHED = "[[], []]"
PROBED = detect_device(1)


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
    return {**kept, **OWN_PROFILES, "PYTHONPATH": str(PACKAGES), **more}


def with_worker(
    fleet: FakeFleet,
    work: Callable[[asyncio.subprocess.Process], Awaitable[None]],
    *flags: str,
    **settings: str,
) -> tuple[int | None, str]:
    """Return the exit code and standard error."""

    async def run() -> tuple[int | None, str]:
        await fleet.start()
        server = f"127.0.0.1:{fleet.port}"
        command = (sys.executable, "-P", "-m", "worker", "--server", server, "--name", "board", *flags)
        process = await asyncio.create_subprocess_exec(
            *command, env=environment(**settings), stderr=asyncio.subprocess.PIPE
        )
        try:
            await work(process)
            _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await fleet.stop()
        return process.returncode, errors.decode()

    return asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_worker_and_its_child_cleanly(number: signal.Signals) -> None:
    fleet = FakeFleet()

    async def work(process: asyncio.subprocess.Process) -> None:
        await fleet.until(lambda: bool(fleet.reports) and fleet.reports[-1].state is WorkerState.READY)
        (child,) = psutil.Process(process.pid).children()
        process.send_signal(number)
        await process.wait()
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

    code, errors = with_worker(fleet, work)
    assert code == 0
    assert "Traceback" not in errors
    assert fleet.reports[-1].state is WorkerState.OFFLINE


def test_the_worker_touches_a_file_after_each_response(tmp_path: Path) -> None:
    fleet = FakeFleet()
    alive = tmp_path / "alive"

    async def work(process: asyncio.subprocess.Process) -> None:
        await fleet.until(lambda: len(fleet.reports) > 1)
        os.utime(alive, (0, 0))
        seen = len(fleet.reports)
        await fleet.until(lambda: len(fleet.reports) > seen + 1)
        assert alive.stat().st_mtime > 0
        process.terminate()

    code, errors = with_worker(fleet, work, TUNEFARM_WORKER_ALIVE_FILE=str(alive))
    assert (code, "Traceback" in errors) == (0, False)


def test_a_signal_during_a_lease_delivers_results_and_returns_the_rest() -> None:
    fleet = FakeFleet()
    fleet.workloads["matmul"] = to_json(workloads.matmul(16, 16, 16))
    lease = fleet.offer(*[UNTOUCHED] * 200, workload="matmul", target='{"kind":"llvm"}')

    async def work(process: asyncio.subprocess.Process) -> None:
        await fleet.until(lambda: len(fleet.stored) > 0)
        process.send_signal(signal.SIGTERM)
        await process.wait()

    code, errors = with_worker(fleet, work, "--threads", "1")
    assert code == 0, errors
    last = fleet.reports[-1]
    assert (last.state, last.held, fleet.held) == (WorkerState.OFFLINE, None, None)
    assert 0 < len(fleet.stored) < len(lease.candidates)
    assert "stopping: returning its lease" in errors


def test_candidates_are_measured_with_tvm() -> None:
    fleet = FakeFleet()
    fleet.workloads["matmul"] = to_json(workloads.matmul(16, 16, 16))
    target = '{"kind":"llvm"}'
    fleet.offer(UNTOUCHED, "no trace", UNTOUCHED, workload="matmul", target=target)

    async def work(process: asyncio.subprocess.Process) -> None:
        await process.wait()

    code, errors = with_worker(fleet, work, "--once", "--threads", "1")
    assert (code, fleet.outcomes()) == (0, ["ok", "build_error", "ok"]), errors
    reported = fleet.reports[-1].device
    assert reported is not None
    assert reported.cores == 1


@pytest.mark.skipif("fma" not in PROBED.features, reason="gives up fma")
def test_a_device_with_disabled_features_has_another_class() -> None:
    fleet = FakeFleet()

    async def work(process: asyncio.subprocess.Process) -> None:
        await fleet.until(lambda: bool(fleet.reports) and fleet.reports[-1].state is WorkerState.READY)
        process.terminate()
        await process.wait()

    code, errors = with_worker(fleet, work, "--threads", "1", TUNEFARM_WORKER_FEATURES="-fma")
    assert code == 0, errors
    device = next(report.device for report in fleet.reports if report.device is not None)
    assert "fma" not in device.features
    assert device.key == detect_device(1, without=("fma",)).key != detect_device(1).key


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86")
def test_a_missing_instruction_set_cannot_be_disabled() -> None:
    fleet = FakeFleet()

    async def work(process: asyncio.subprocess.Process) -> None:
        await process.wait()

    code, errors = with_worker(fleet, work, "--threads", "1", "--features", "-xop,-tbm")
    assert code == ExitCode.USAGE
    assert errors.splitlines()[-1].endswith("this machine has no xop to give up: leave it out")
    assert "Traceback" not in errors


def test_a_worker_that_is_refused_says_why_in_one_line() -> None:
    fleet = FakeFleet()
    fleet.refusal = grpc.StatusCode.UNAUTHENTICATED, "the token is wrong"

    async def work(process: asyncio.subprocess.Process) -> None:
        await process.wait()

    code, errors = with_worker(fleet, work)
    assert code == ExitCode.REFUSED
    assert errors.splitlines()[-1].endswith("refused this worker: the token is wrong; check --token")
    assert "Traceback" not in errors


def test_a_worker_without_its_scope_names_the_next_step() -> None:
    fleet = FakeFleet()
    fleet.refusal = grpc.StatusCode.PERMISSION_DENIED, "this token lacks the scope worker"

    async def work(process: asyncio.subprocess.Process) -> None:
        await process.wait()

    code, errors = with_worker(fleet, work)
    assert code == ExitCode.REFUSED
    assert errors.splitlines()[-1].endswith(
        "this token lacks the scope worker; make it one with `tunefarm token create --scope worker`"
    )


def test_sending_a_token_without_tls_causes_a_warning() -> None:
    command = (sys.executable, "-P", "-m", "worker", "--server", "192.0.2.1:9", "--token", "s3cret")
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        warning = next(line for line in process.stderr if "WARNING" in line)
        process.terminate()
        process.communicate(timeout=60)
    assert "is sent in clear: use --tls" in warning
    assert "s3cret" not in warning


def test_a_fenced_worker_has_an_exit_code_of_its_own() -> None:
    fleet = FakeFleet()
    fleet.fence = True

    async def work(process: asyncio.subprocess.Process) -> None:
        await process.wait()

    code, errors = with_worker(fleet, work)
    assert code == ExitCode.FENCED
    assert errors.splitlines()[-1].startswith("tunefarm worker: another worker took over the name board")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "the setting server is missing: give it by --server or TUNEFARM_WORKER_SERVER"),
        (["--server", "http://farm"], "HOST:PORT, not 'http://farm'"),
        (["--server", "farm:1", "--threads", "0"], "the setting threads is wrong"),
        (["--server", "farm:1", "--name", "a b"], "the setting name is wrong"),
        (["--server", "farm:1", "--features", "-avx99"], "'avx99' is no instruction set of"),
        (["--server", "farm:1", "--features", "avx2"], "given up like this: -avx512f,-avx2, not 'avx2'"),
        (["--server", "farm:1", "--features"], "Option '--features' requires an argument"),
        (["--server", "farm:1", "--ca", "/gone.pem"], "/gone.pem can't be read"),
        (["--server", "farm:1", "--cert", "/gone.pem"], "a certificate, but no key"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_line(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs in this process, because imports in a new one would take most of the time."""
    monkeypatch.delenv("TUNEFARM_WORKER_SERVER", raising=False)
    assert main(flags) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tunefarm worker: ")
    assert says in line


def test_a_builder_makes_the_folder_of_the_linkers_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox can't give the child access to a missing folder."""
    flags = ["--server", "farm:1", "--build", "--ca", "/gone.pem"]  # a mistake, so that it ends
    folder = tmp_path / "caches" / "zig"
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(folder))
    assert main(flags) == ExitCode.USAGE
    assert folder.is_dir()

    (tmp_path / "file").touch()
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "file" / "zig"))
    assert main(flags) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert "ZIG_GLOBAL_CACHE_DIR names" in line
    assert "which can't be made: Not a directory" in line


def test_the_agent_itself_never_loads_tvm() -> None:
    check = "import sys, worker.main; sys.exit(sum(name in sys.modules for name in ('tvm', 'tvm_ffi')))"
    subprocess.run([sys.executable, "-c", check], env=environment(), check=True)
