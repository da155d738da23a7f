"""A compiler that a model has taken over looks for files, sockets and the network."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.worker.sandboxed import COMMANDS, ROOT, works

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

PARENT = """
import logging, sys
from compiler.children.child import run_child
logging.basicConfig(format="%(message)s")
with run_child("taken_over", b"", 60.0) as (reply, _):
    sys.stdout.write(reply.read().decode())
"""
TAKEN_OVER = """
import json, os, socket, sys, tempfile
from pathlib import Path

def done(do):
    try:
        return str(do())
    except OSError as error:
        return error.strerror

def connect(family, address):
    with socket.socket(family) as opened:
        opened.connect(address)
    return "connected"

home, port = Path({home!r}), {port}
roots = [done((Path("/proc", one, "root" + str(home)) / "secret").read_text) for one in os.listdir("/proc")]
print(json.dumps({{
    "read": done((home / "secret").read_text),
    "write": done(lambda: (home / "planted").write_text("x")),
    "package": done(lambda: Path({package!r}, "planted").write_text("x")),
    "roots": "the password" in roots,
    "processes": [one for one in os.listdir("/proc") if one.isdigit()],
    "service": done(lambda: connect(socket.AF_UNIX, str(home / "socket"))),
    "network": done(lambda: connect(socket.AF_INET, ("127.0.0.1", port))),
    "scratch": done(lambda: Path(tempfile.mkstemp()[1]).write_text("x")),
    "rights": [line for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))],
}}))
"""
SYSTEMS = [
    pytest.param(name, marks=pytest.mark.skipif(not works(name), reason="needs root and unshare(1)"))
    for name in ("as it is", "no namespaces")
]


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of this user, outside of those that the compiler needs."""
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-home-", dir="/var/tmp"))
    (folder / "secret").write_text("the password")
    yield folder
    shutil.rmtree(folder)


def found_by_a_child(system: str, home: Path, folder: Path) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as service, socket.create_server(("127.0.0.1", 0)) as network:
        service.bind(str(home / "socket"))
        service.listen()
        script = TAKEN_OVER.format(home=str(home), port=network.getsockname()[1], package=str(ROOT / "core"))
        (folder / "taken_over.py").write_text(script)
        path = os.pathsep.join([str(folder), str(ROOT)])
        command = [*COMMANDS[system], sys.executable, "-c", PARENT]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
    assert "the compiler" not in done.stderr, "there are no gaps"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_compiler_that_was_taken_over_reaches_nothing(system: str, home: Path, tmp_path: Path) -> None:
    found = found_by_a_child(system, home, tmp_path)
    assert found.pop("scratch") == "1"
    assert found.pop("rights") == ["CapEff:\t0000000000000000\n", "NoNewPrivs:\t1\n"]
    assert found.pop("roots") is False
    processes = sorted(found.pop("processes"))
    assert processes == ["1", "2"] or system == "no namespaces", "it sees its own and the one that waits"
    refusals = ("No such file", "Read-only", "denied", "not permitted", "unreachable")
    for tried, answer in found.items():
        assert any(refusal in answer for refusal in refusals), f"{tried}: {answer}"
    assert sorted(os.listdir(home)) == ["secret", "socket"]
    assert not (ROOT / "core" / "planted").exists()
