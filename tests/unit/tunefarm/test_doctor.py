"""The doctor's findings, and the next step for each problem."""

from __future__ import annotations

import json
import platform
import socket
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from core.exit_code import ExitCode
from system import nvcc
from tests.unit.tunefarm.fake_service import WORKER, FakeService, serving
from tunefarm.cli import doctor
from tunefarm.cli.app import app, run
from tunefarm.settings import CommandSettings

Findings = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "TOKEN", "DATABASE_URL", "BROKER"):
        monkeypatch.delenv(f"TUNEFARM_{name}", raising=False)
    monkeypatch.setenv("TUNEFARM_CONFIG", str(tmp_path / "no config.toml"))
    monkeypatch.setenv("TUNEFARM_DATA", str(tmp_path / "data"))
    # Each is tested by itself; these depend on the machine.
    kept = {doctor.check_folder, doctor.check_back_ends, doctor.check_service, doctor.check_versions}
    monkeypatch.setattr(doctor, "CHECKS", tuple(check for check in doctor.CHECKS if check in kept))


def diagnosed(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, Findings]:
    code = run(app, ["doctor", "--json", *flags])
    return code, {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_a_machine_without_a_service_is_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = diagnosed(capsys)
    assert code == ExitCode.OK
    assert {finding["state"] for finding in found.values()} == {"ok"}
    assert "tunefarm up" in found["service"]["found"]


def test_problems_come_with_the_next_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNEFARM_DATABASE_URL", f"sqlite:///{tmp_path}/none/t.db")
    monkeypatch.setenv("TUNEFARM_BROKER", "redis://127.0.0.1:1/0")
    workers = [
        WORKER | {"health_error": "no compiler"},
        WORKER | {"id": "w2", "sandbox_gaps": "it may use the network"},
        WORKER | {"id": "w3", "tunefarm_version": "0.0.1"},
        WORKER | {"id": "w4"},
    ]
    with serving(FakeService(workers=workers)) as service:
        code, found = diagnosed(capsys, "--server", service.url)
    assert code == ExitCode.LOCAL
    states = {subject: finding["state"] for subject, finding in found.items()}
    assert states["database"] == states["broker"] == states["worker w1"] == "problem"
    assert states["service"] == states["worker w2"] == states["worker w3"] == "warning", "another version"
    assert states["worker w4"] == "ok"
    assert all(bool(finding["mend"]) == (finding["state"] != "ok") for finding in found.values())


def test_a_missing_client_of_redis_is_a_finding_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFARM_BROKER", "redis://doctor-without-a-client/0")
    monkeypatch.setattr("scheduler.app.find_spec", lambda name: None)
    _, found = diagnosed(capsys)
    assert found["broker"]["state"] == "problem"
    assert found["broker"]["found"].endswith("client isn't installed: pip install 'tunefarm[redis]'")


def test_the_doctor_prints_a_table_with_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["doctor", "--server", "http://127.0.0.1:1"]) == ExitCode.LOCAL
    captured = capsys.readouterr()
    assert "problem" in captured.out
    assert captured.err.startswith("tunefarm: problems found: service")


def test_a_wrong_pair_of_libraries_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", {"tunefarm": "1", "apache-tvm": "0.1", "apache-tvm-ffi": "0"}.get)
    _, tvm = doctor.check_versions(CommandSettings())
    assert (tvm.state, tvm.found) == (doctor.Severity.PROBLEM, "apache-tvm 0.1, apache-tvm-ffi 0")
    assert tvm.mend.startswith("other pairs crash: pip install apache-tvm==")


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = CommandSettings(port=taken.getsockname()[1], grpc_port=0)
        http, grpc = doctor.check_ports(settings)
    assert (http.state, http.mend) == (doctor.Severity.WARNING, "`tunefarm up --port 0` takes another one")
    assert grpc.state is doctor.Severity.OK


@pytest.mark.parametrize(
    ("answer", "state", "said"),
    [
        ("580.95.05", "ok", "1 NVIDIA GPU(s), driver 580.95.05"),
        ("535.247.01", "warning", "1 NVIDIA GPU(s), driver 535.247.01"),
        (pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), "warning", "no driver that answers"),
    ],
)
def test_a_gpus_driver_is_looked_at(
    answer: str | Exception, state: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = tmp_path / "pci/0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "vendor").write_text("0x10de\n")
    (gpu / "class").write_text("0x030200\n")
    monkeypatch.setattr(doctor, "PCI", tmp_path / "pci")
    monkeypatch.setattr(doctor, "DEV", tmp_path)

    class Driver:
        NVMLError = pynvml.NVMLError

        @staticmethod
        def nvmlInit() -> None:  # noqa: N802 - NVIDIA's name
            if isinstance(answer, Exception):
                raise answer

        @staticmethod
        def nvmlSystemGetDriverVersion() -> object:  # noqa: N802 - NVIDIA's name
            return answer

    monkeypatch.setitem(sys.modules, "pynvml", Driver)
    monkeypatch.setattr(nvcc, "_toolkits", lambda: [tmp_path])
    monkeypatch.setenv("PATH", str(tmp_path))
    driver, compiler = doctor.check_gpus(CommandSettings())
    assert (driver.state, said in driver.found) == (state, True)
    assert ("580 or newer" in driver.mend) == (state == "warning")
    assert compiler.mend.startswith("pip install 'tunefarm[cuda]'")


@pytest.mark.skipif(sys.platform != "linux", reason="it reads what Linux says")
def test_this_machine_is_described() -> None:
    hardware = (doctor.check_gpus, doctor.check_threads, doctor.check_features, doctor.check_noise)
    for check in (doctor.check_tools, *hardware, doctor.check_sandbox):
        for finding in check(CommandSettings()):
            assert finding.found
            assert bool(finding.mend) == (finding.state is not doctor.Severity.OK)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has AMX")
def test_the_doctor_names_amx_and_whether_linux_permits_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t\t: fpu avx2 avx512_bf16 amx_bf16 amx_tile amx_int8\n")
    monkeypatch.setattr(doctor, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(doctor, "request_tiles", lambda: None)
    [found] = doctor.check_features(CommandSettings())
    assert found.state is doctor.Severity.OK
    assert found.found == "x86_64: avx2, avx512_bf16, amx_tile, amx_int8, amx_bf16"

    def refuse() -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(doctor, "request_tiles", refuse)
    [found] = doctor.check_features(CommandSettings())
    assert found.state is doctor.Severity.WARNING
    assert found.found.endswith("; Linux doesn't permit AMX (Invalid argument)")
    assert "5.16" in found.mend
