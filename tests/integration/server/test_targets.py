"""`tunefarm tune` for several targets. The service rejects one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.exit_code import ExitCode
from core.job import JobState
from tunefarm.cli.app import app, run
from tunefarm.client import Client

from .conftest import Service, Worker, onnx_model


def test_nothing_is_left_behind_where_a_target_is_refused(
    service: Service,
    worker: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker.call()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relu.onnx").write_bytes(onnx_model())
    targets = ["--target", worker.device.key, "--target", "toaster"]
    assert run(app, ["tune", "relu.onnx", "--server", service.url, *targets]) == ExitCode.BAD_INPUT
    assert "toaster" in capsys.readouterr().err
    with Client(service.url) as client:
        [job] = client.jobs()
    assert (job.target, job.state) == (worker.device.key, JobState.CANCELLED)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/schedules/best", {"workload": "5178284402301854127"}),
        ("/v1/artifacts/best", {"model": "0" * 64}),
        ("/v1/releases/production", {}),
        ("/v1/cost-models", {}),
    ],
)
def test_what_a_device_class_lacks_is_refused_with_its_name(
    path: str, asked: dict[str, str], service: Service, worker: Worker
) -> None:
    worker.call()
    answer = service.http.get(path, params=asked | {"target": worker.device.key})
    assert answer.status_code == 404
    assert f" {worker.device.name}" in answer.json()["detail"]
