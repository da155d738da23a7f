"""The sandbox's promises, tested by each kind of child on each kind of system."""

from __future__ import annotations

import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandbox.kinds import KINDS
from tests.integration.sandbox import attacker
from tests.integration.worker.sandboxed import COMMANDS, ROOT, works

HERE = Path(__file__).parent
# The gaps of each system. Other systems have none.
SEES_PROCESSES, RUNS_AS_ROOT = "sees the other processes of its user", "runs as root"
SYSTEMS = {
    "as it is": (),
    "unprivileged": (),
    "no namespaces": (SEES_PROCESSES, RUNS_AS_ROOT),
    "root, only Landlock": (SEES_PROCESSES,),
    "unprivileged, only Landlock": (SEES_PROCESSES,),
}

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's"),
    pytest.mark.skipif(not all(map(works, SYSTEMS)), reason="needs root, unshare(1) and setpriv(1)"),
]


@dataclass(frozen=True)
class Machine:
    """An attacker's targets on a machine: files, a terminal, a service."""

    environment: dict[str, str]
    told: dict[str, str]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """A home with a checkout and an installation, a user's terminal, and a service with a socket."""
    home = Path(tempfile.mkdtemp(prefix="tunefarm-home-", dir="/var/tmp"))
    secrets = [
        *(home / "secret", home / "checkout/.env", home / "checkout/deploy/worker.env"),
        *(home / "checkout/tokens.txt", home / "prefix/worker.env", home / "prefix/installed"),
    ]
    modules = [home / "checkout/package/__init__.py", home / "checkout/torch/__init__.py"]
    for file in (*secrets, *modules, home / "prefix/bin/tool"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'"{attacker.SECRET}"' if file in secrets else "")
    terminal, other_end = pty.openpty()
    os.chmod(os.ttyname(other_end), 0o666)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(home / "socket"))
        service.listen()
        subprocess.run(["chmod", "-R", "a+rwX", home], check=True)
        path = os.pathsep.join(map(str, (HERE, home / "checkout", ROOT)))
        yield Machine(
            {**os.environ, "PYTHONPATH": path, "VIRTUAL_ENV": str(home / "prefix")},
            {
                "secrets": " ".join(map(str, secrets)),
                "packages": f"{ROOT / 'core'} {home / 'checkout/package'}",
                "terminal": os.ttyname(other_end),
                "service": str(home / "socket"),
            },
        )
    os.close(terminal)
    os.close(other_end)
    shutil.rmtree(home)


def attacked(kind: str, system: str, machine: Machine, told: dict[str, str]) -> dict[str, Any]:
    command = [*COMMANDS[system], sys.executable, str(HERE / "child.py"), kind, system, json.dumps(told)]
    done = subprocess.run(
        command, env=machine.environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
def test_a_child_reaches_nothing_and_leaves_nothing(kind: str, system: str, machine: Machine) -> None:
    marker = uuid.uuid4().hex
    found = attacked(kind, system, machine, {**machine.told, "marker": marker, "kind": kind})
    assert found["works"] == "ok"
    reached = {name: what for name, what in found["reached"].items() if what}
    assert reached == {}
    gaps = found["sandbox_gaps"]
    assert len(gaps) == len(SYSTEMS[system]), gaps
    assert all(any(expected in gap for gap in gaps) for expected in SYSTEMS[system])
    assert (found["uid"] == 0) == any(RUNS_AS_ROOT in gap for gap in gaps)
    left = [one for one in psutil.process_iter(["cmdline"]) if marker in " ".join(one.info["cmdline"] or ())]
    assert left == []
