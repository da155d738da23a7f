from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from core.lease import Limits
from system.tls import TlsFiles
from worker import settings
from worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ("TOKEN", "CA", "CERT", "KEY")
    own = ("SERVER", "THREADS", "NAME", "TLS")
    for name in (*shared, *(f"WORKER_{each}" for each in (*shared, *own))):
        monkeypatch.delenv(f"TUNEFARM_{name}", raising=False)


def test_the_environment_stands_in_for_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_WORKER_SERVER", "farm:8761")
    monkeypatch.setenv("TUNEFARM_WORKER_THREADS", "3")
    assert (WorkerSettings().server, WorkerSettings().threads) == ("farm:8761", 3)
    assert WorkerSettings(server="other:1").server == "other:1"


def test_the_build_setting_makes_a_worker_a_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNEFARM_WORKER_BUILD", raising=False)
    assert not WorkerSettings(server="farm:1").build
    monkeypatch.setenv("TUNEFARM_WORKER_BUILD", "1")
    assert WorkerSettings(server="farm:1").build


def test_the_nearest_token_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "somebody else's")
    assert WorkerSettings(server="farm:1").secret is None
    monkeypatch.setenv("TUNEFARM_TOKEN", "service")
    assert WorkerSettings(server="farm:1").secret == "service"
    monkeypatch.setenv("TUNEFARM_WORKER_TOKEN", "worker")
    assert WorkerSettings(server="farm:1").secret == "worker"
    assert WorkerSettings(server="farm:1", token="flag").secret == "flag"
    assert "flag" not in repr(WorkerSettings(server="farm:1", token="flag"))


def test_tls_is_enabled_by_its_flag_or_any_tls_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WorkerSettings(server="farm:1").tls_files is None
    assert WorkerSettings(server="farm:1", tls=True).tls_files == TlsFiles()
    monkeypatch.setenv("TUNEFARM_CA", "service.ca")
    monkeypatch.setenv("TUNEFARM_WORKER_CERT", "own.pem")
    monkeypatch.setenv("TUNEFARM_WORKER_KEY", "own.key")
    files = TlsFiles(Path("own.pem"), Path("own.key"), Path("service.ca"))
    assert WorkerSettings(server="farm:1").tls_files == files


def test_instruction_sets_are_disabled_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.delenv("TUNEFARM_WORKER_FEATURES", raising=False)
    assert WorkerSettings(server="farm:1").without == ()
    monkeypatch.setenv("TUNEFARM_WORKER_FEATURES", "-avx512f,-fma")
    assert WorkerSettings(server="farm:1").without == ("avx512f", "fma")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(ValidationError, match="'avx512f' is no instruction set of aarch64"):
        WorkerSettings(server="farm:1")


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("farm:1", False),
        ("10.0.0.7:1", False),
    ],
)
def test_loopback_servers_are_recognized(server: str, local: bool) -> None:
    assert WorkerSettings(server=server).local is local


@pytest.mark.parametrize("server", ["farm", "http://farm:1", "farm:0", "farm:65536", "farm:x", ":1", ""])
def test_invalid_server_addresses_are_rejected(server: str) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings(server=server)


@pytest.mark.parametrize("server", ["farm:1", "127.0.0.1:8761", "[::1]:8761"])
def test_addresses(server: str) -> None:
    assert WorkerSettings(server=server).server == server


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"name": "two words"}, {"name": ""}, {"run_timeout_s": 0}])
def test_invalid_values_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings(server="farm:1", **wrong)


def test_the_host_name_is_shortened_to_a_valid_worker_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "my board\n")
    assert WorkerSettings(server="farm:1").name == "myboard"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert WorkerSettings(server="farm:1").name == "worker"


def test_only_configured_limits_override_the_leases() -> None:
    given = Limits(build_timeout_s=1.0, run_timeout_s=2.0, module_timeout_s=3.0, memory_bytes=4)
    ours = WorkerSettings(server="farm:1", run_timeout_s=20.0, memory_bytes=5)
    assert ours.override_limits(given) == Limits(1.0, 20.0, 3.0, 5)


def test_lease_limits_are_capped_by_the_devices() -> None:
    greedy = Limits(build_timeout_s=1e9, run_timeout_s=1e9, module_timeout_s=1e9, memory_bytes=1 << 60)
    ours = WorkerSettings(server="farm:1", max_timeout_s=100.0, max_memory_bytes=1 << 30)
    assert ours.override_limits(greedy) == Limits(100.0, 100.0, 100.0, 1 << 30)
    assert WorkerSettings(server="farm:1").override_limits(greedy).memory_bytes <= 1 << 50
    raised = WorkerSettings(server="farm:1", memory_bytes=1 << 40)
    assert raised.override_limits(greedy).memory_bytes == 1 << 40, "the owner of the device decides"


@pytest.mark.parametrize(
    ("allowed", "physical", "quota", "cores"),
    [
        (8, 4, "max 100000", 4),
        (2, 4, "max 100000", 2),
        (8, None, "max 100000", 8),
        (8, 8, "250000 100000", 2),
        (8, 8, "50000 100000", 1),
        (8, 8, None, 8),
    ],
)
def test_usable_cores_respect_topology_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    allowed: int,
    physical: int | None,
    quota: str | None,
    cores: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(allowed)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(settings, "CGROUP_QUOTA", tmp_path / "cpu.max")
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota)
    assert settings.usable_cores() == cores
