"""The worker's unit: systemd accepts it, and it has the promised settings."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[3] / "deploy/systemd/tunefarm-worker.service"
PROGRAM = "/opt/tunefarm/bin/tunefarm"


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # The program is not installed here; what else the file says is checked as it is.
    assert UNIT.read_text().count(PROGRAM) == 1
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace(PROGRAM, sys.executable))
    verify = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=60, check=False)
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (about_it, done.returncode) == ([], 0), done.stderr


def test_systemd_always_restarts_the_worker(service: configparser.SectionProxy) -> None:
    assert (service["Restart"], service["KillMode"]) == ("always", "mixed")
    assert service["ExecStart"] == f"{PROGRAM} worker"
    assert service["EnvironmentFile"] == "/etc/tunefarm/worker.env"


@pytest.mark.parametrize(("code", "updates"), [("10", True), ("0", False), ("9", False)])
def test_systemd_updates_the_worker_only_after_exit_code_10(
    service: configparser.SectionProxy, tmp_path: Path, code: str, updates: bool
) -> None:
    """Run the unit's commands like systemd, in a separate folder."""
    (tmp_path / "install").write_text('echo "$@" >>"$(dirname "$0")/said"\n')
    for key in ("ExecStopPost", "ExecStartPre", "ExecStartPre"):
        prefix, quoted = service[key].split("/bin/sh -c ")
        assert prefix == "+-"
        command = quoted.strip("'").replace("$$", "$")
        command = command.replace("/run", str(tmp_path)).replace("/opt/tunefarm", str(tmp_path))
        subprocess.run(["sh", "-c", command], env={"EXIT_STATUS": code, "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "said").exists() is updates


@pytest.mark.parametrize("promise", ["DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp"])
def test_the_unit_has_no_privileges(service: configparser.SectionProxy, promise: str) -> None:
    assert service[promise] == "yes"
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"]) == ("strict", "")


def test_the_unit_limits_the_memory_of_all_processes(service: configparser.SectionProxy) -> None:
    assert (service["MemoryMax"], service["OOMPolicy"]) == ("90%", "continue")


def test_the_unit_lets_the_worker_contain_candidates(service: configparser.SectionProxy) -> None:
    hindrances = {"RestrictNamespaces", "PrivateDevices", "PrivateUsers", "MemoryDenyWriteExecute"}
    assert not hindrances & set(service)
