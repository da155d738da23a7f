"""Measured code tries what its sandbox must prevent."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from core.lease import Limits
from sandbox.kinds import GPU_GROUPS
from sandbox.limits import MAX_OPEN_FILES
from sandbox.privileges import account_of
from tests.integration.worker.executors import is_unlocked
from tests.integration.worker.sandboxed import HERE, NODES, ROOT, has_group, measured, works
from worker.runner.executor import ChildConfig, Executor
from worker.runner.interface import BuildRequest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

GENEROUS = Limits(build_timeout_s=60.0, run_timeout_s=60.0, memory_bytes=1 << 28)
SYSTEMS = [
    pytest.param("as it is", id="namespaces"),
    pytest.param(
        "no namespaces",
        id="no namespaces",
        marks=pytest.mark.skipif(not works("no namespaces"), reason="needs root and unshare(1)"),
    ),
]
needs_readable = pytest.mark.skipif(not works("readable"), reason="needs root and mount namespaces")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_nothing_is_reached_over_the_network(system: str, family: str) -> None:
    local = {"AF_INET": "127.0.0.1", "AF_INET6": "::1"}[family]
    try:
        listening = socket.create_server((local, 0), family=getattr(socket, family))
    except OSError:
        pytest.skip(f"no {family} here")
    with listening:
        (error,) = measured(system, [f"connect {family}"], str(listening.getsockname()[1]))["errors"]
    assert error != "connected"
    assert "unreachable" in error or "not permitted" in error or "assign" in error, error


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_gaps_of_the_sandbox_are_named(system: str) -> None:
    said = " ".join(measured(system, ["ok"])["sandbox_gaps"])
    assert ("refuses namespaces" in said) == (system == "no namespaces")
    assert "reach the network" not in said


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_rights_are_left_and_none_are_gained(system: str) -> None:
    (status,) = measured(system, ["status"])["errors"]
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == 0
    assert facts["NoNewPrivs"] == "1"


@needs_readable
@pytest.mark.slow
def test_measured_code_of_a_worker_of_root_is_another_users() -> None:
    found = measured("readable", ["status", "write_scratch", "processes"], user="nobody")
    status, wrote, processes = found["errors"]
    account = account_of("nobody")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == [str(account.uid)] * 4
    assert facts["Gid"].split() == [str(account.gid)] * 4
    assert set(facts["Groups"].split()) == set(map(str, account.groups))
    assert wrote == "written"
    assert found["sandbox_gaps"] == []
    # Either limit may end it first: the number of processes, or their memory together.
    ends = ("Resource temporarily unavailable", "GB of memory together")
    assert any(end in processes for end in ends), "there is an end to forking"


@pytest.mark.skipif(not works("unprivileged"), reason="needs root, setpriv(1) and user namespaces")
def test_a_worker_without_root_has_a_sandbox_as_well() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        traces = ["connect AF_INET", "status"]
        found = measured("unprivileged", traces, str(listening.getsockname()[1]), user="nobody")
    connected, status = found["errors"]
    assert found["sandbox_gaps"] == []
    assert "not permitted" in connected
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == 0
    assert facts["NoNewPrivs"] == "1"


@pytest.mark.skipif(not works("with a GPU, unprivileged"), reason="needs root, setpriv(1) and namespaces")
@pytest.mark.slow
@pytest.mark.parametrize("system", ["with a GPU", "with a GPU, unprivileged"])
def test_the_nodes_of_gpus_stay_in_reach(system: str) -> None:
    """For a root worker, and for a worker in their groups."""
    found = measured(system, ["open", "status"], " ".join(f"/dev/{name}" for name in NODES), user="nobody")
    opened, status = found["errors"]
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (found["sandbox_gaps"], facts["NoNewPrivs"]) == ([], "1")
    assert NODES["another"] == ("root", 0o660), "so that something is refused"
    groups = {"root", *(name for name in GPU_GROUPS if has_group(name))}
    expected = [name for name, (group, _) in NODES.items() if group in groups and name != "another"]
    assert opened.split() == [f"/dev/{name}" for name in expected]


def test_an_account_keeps_the_groups_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"video": 44, "render": 106}

    def group(name: str) -> grp.struct_group:
        return grp.struct_group((name, "x", there[name], []))

    monkeypatch.setattr("sandbox.privileges.grp.getgrnam", group)
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert {44, 106} < set(account_of(user, GPU_GROUPS).groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_python_that_others_may_not_read_is_named_and_root_has_no_capabilities(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.touch(0o600)
    closed = subprocess_environment(PYTHONPATH=str(tmp_path))
    found, status = asyncio.run(status_of(closed, "nobody"))
    assert any(f"runs as root: the user nobody may not read {module}" in gap for gap in found)
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split()[0] == "0"
    assert int(facts["CapEff"], 16) == 0


def subprocess_environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), str(HERE), more.pop("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **more}


async def status_of(environment: dict[str, str], user: str) -> tuple[tuple[str, ...], str]:
    executor = Executor(ChildConfig(2, "fault_runner:FaultRunner", user=user), environment)
    try:
        status = (await executor.measure(BuildRequest("", "", "status", ()), GENEROUS)).error
        return executor.sandbox_gaps, status
    finally:
        await executor.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_user_who_does_not_exist_is_named() -> None:
    from worker.runner.start_failure import ChildStartError

    with pytest.raises(ChildStartError, match=r"no user 'nobody-here'.*TUNEFARM_WORKER_CHILD_USER"):
        asyncio.run(status_of(subprocess_environment(), "nobody-here"))


def test_open_files_are_limited() -> None:
    (count,) = measured("as it is", ["files"])["errors"]
    assert 0 < int(count) <= MAX_OPEN_FILES


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("trace", ["escape", "escape_and_hang"])
def test_a_process_in_another_session_ends_with_the_child(system: str, trace: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    note = tmp_path / "pid"
    if trace == "escape":
        measured(system, [trace], str(note), shared=[str(tmp_path)])
    else:
        asyncio.run(cancelled(trace, note))
    assert is_unlocked(note)


async def cancelled(trace: str, note: Path) -> None:
    """Cancel the measurement of a candidate once it has written its note."""
    config = ChildConfig(2, "fault_runner:FaultRunner", writable=(note.parent,))
    executor = Executor(config, subprocess_environment())
    measuring = asyncio.create_task(executor.measure(BuildRequest("", str(note), trace, ()), GENEROUS))
    while not note.exists() or not note.read_text():
        await asyncio.sleep(0.01)
    measuring.cancel()
    await asyncio.gather(measuring, return_exceptions=True)


def test_the_agent_can_be_neither_signalled_nor_read() -> None:
    me = str(os.getpid())
    killed, read = measured("as it is", ["signal_agent", "read_agent"], me)["errors"]
    assert "No such process" in killed
    assert "ermission" in read or "No such file" in read, read


def test_an_agent_of_another_user_hides_its_environment() -> None:
    # Its memory can't be read, which hides its environment from root's children without capabilities.
    script = "from sandbox import privileges; privileges.hide_memory(); print(flush=True); input()"
    agent = subprocess.Popen(
        [sys.executable, "-c", script], env=subprocess_environment(), stdin=-1, stdout=-1, text=True
    )
    with agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        (read,) = measured("as it is", ["read_agent"], str(agent.pid))["errors"]
        agent.kill()
    assert "ermission" in read or "No such file" in read, read


def test_more_time_of_the_cores_than_allowed_ends_the_process() -> None:
    script = "from sandbox import limits\nlimits.limit_cpu(0.1)\nwhile True: pass"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGXCPU


@needs_readable
@pytest.mark.slow
@pytest.mark.parametrize("system", ["readable", "unprivileged", "unprivileged, only Landlock"])
def test_the_real_runner_works_as_another_user(system: str) -> None:
    """TVM's libraries, its thread pool, LLVM, temporary files: a program is compiled, run and verified."""
    found = measured(system, [], user="nobody", runner="worker.runner.compiler_runner:CompilerRunner")
    assert not any("files" in gap for gap in found["sandbox_gaps"])
    assert found["triple"]
