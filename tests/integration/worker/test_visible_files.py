"""Measured code looks for the machine's files and sockets, and tries to change its packages."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from tests.integration.worker.sandboxed import COMMANDS, ROOT, measured, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

BARE = "unprivileged, nothing"
# By mounts as root and as another user, by Landlock as root and as another user.
BY_MOUNTS = ("as it is", "unprivileged")
CONTAINED = (*BY_MOUNTS, "no namespaces", "unprivileged, only Landlock")


def systems(*names: str) -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.skipif(not works(name), reason="needs root and unshare(1)"))
        if COMMANDS[name]
        else name
        for name in names
    ]


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user may read and write, as a worker's own user its home."""
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-home-", dir="/var/tmp"))
    (folder / "secret").write_text("the password")
    folder.chmod(0o777)
    (folder / "secret").chmod(0o666)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("system", systems(*CONTAINED))
def test_measured_code_neither_reads_nor_writes_the_files_of_the_machine(system: str, home: Path) -> None:
    package = ROOT / "worker" / "__init__.py"
    looked = [home, home / "secret", "/tmp", "/run", "/home", "/var/log", "/etc/shadow", "/etc/hostname"]
    if system in BY_MOUNTS:
        looked.append("/usr/lib/debug/.build-id")  # debug symbols, where they are installed
    found = measured(system, ["look"], " ".join(map(str, [*looked, package])))
    *others, of_package = found["errors"][0].splitlines()
    assert not [line for line in others if "read" in line and not line.startswith("/tmp:")]
    assert not [line for line in (*others, of_package) if "written" in line]
    assert "read" in of_package, "Python needs it"
    assert not any("files" in gap for gap in found["sandbox_gaps"])
    assert os.listdir(home) == ["secret"]


@pytest.mark.parametrize("system", systems(*CONTAINED))
def test_measured_code_reaches_no_socket_of_a_service(system: str, home: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "docker.sock"))
        (home / "docker.sock").chmod(0o777)
        listening.listen()
        (error,) = measured(system, ["ask"], str(home / "docker.sock"))["errors"]
    assert "No such file" in error or "not permitted" in error or "denied" in error, error


@pytest.mark.parametrize("system", systems(*CONTAINED))
def test_no_other_process_lends_its_root(system: str, home: Path) -> None:
    (found,) = measured(system, ["look_through"], str(home / "secret"))["errors"]
    assert found == ""


@pytest.mark.parametrize("system", systems(*CONTAINED))
def test_measured_code_sees_the_needed_files(system: str) -> None:
    found = measured(system, ["write_scratch", "open"], "/dev/null /dev/zero")
    assert found["errors"] == ["written", "/dev/null /dev/zero"]


@pytest.mark.parametrize("system", systems(BARE))
def test_where_the_kernel_refuses_the_gap_is_named(system: str, home: Path) -> None:
    """Without isolation, the tests above would find the files."""
    found = measured(system, ["look"], f"{home} {home / 'secret'}")
    assert found["errors"][0].count("seen read written") == 2
    assert any("sees the files of its user" in gap and "5.13" in gap for gap in found["sandbox_gaps"])


@pytest.mark.slow
@pytest.mark.skipif(not works("no namespaces"), reason="needs root and unshare(1)")
def test_a_worker_that_requires_a_sandbox_ends_where_it_has_gaps() -> None:
    command = [*COMMANDS["no namespaces"], sys.executable, "-m", "worker", "--server", "127.0.0.1:9"]
    required = {"TUNEFARM_WORKER_REQUIRE_SANDBOX": "1", "TUNEFARM_WORKER_CHILD_USER": "root"}
    environment = {**os.environ, **required, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == ExitCode.USAGE, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tunefarm worker: this worker requires a sandbox without gaps, but measured code")
