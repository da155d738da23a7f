"""`tunefarm diff` and `check` on a real server, with artifacts as jobs publish them."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core.exit_code import ExitCode
from records.jobs import tasks
from records.jobs.tasks import TaskSpec
from tests.devices import DEVICE
from tunefarm.cli.app import app, run

from .artifacts import publish
from .conftest import Service, Worker, onnx_model


def packed(*entries: dict[str, Any]) -> bytes:
    data, manifest = io.BytesIO(), json.dumps({"tasks": entries}).encode()
    with tarfile.open(fileobj=data, mode="w") as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(manifest)
        tar.addfile(info, io.BytesIO(manifest))
    return data.getvalue()


def entry(
    workload: str, latency_s: float | None, trace: str | None = "[]", weight: int = 1
) -> dict[str, Any]:
    own = {"workload": workload, "name": f"name of \x1b{workload}", "weight": weight}
    return own | {"latency_s": latency_s, "trace": trace}


@dataclass(frozen=True)
class Jobs:
    service: Service
    first: str
    second: str


@pytest.fixture
def jobs(service: Service, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Two jobs of one model: in the second, a variant computes the convolution."""
    worker.call()
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    before = packed(
        entry("conv", 4e-4, "[1]", 2), entry("pool|2", 1e-4), entry("gone", 5e-5), entry("new|2", None, None)
    )
    after = packed(entry("winograd", 2e-4, "[2]", 2), entry("pool|2", 1e-4), entry("new|2", 6e-5))
    first = publish(service, worker, before, 1e-3)
    second = publish(service, worker, after, 1.1e-3, trials=20, exact=True)
    with service.database.begin() as session:
        for name in ("conv", "winograd", "pool|2"):
            tasks.put_workload(session, name, "{}")
        pool = TaskSpec(first, "pool|2", "max_pool2d", 1, 1.0, True, "", (), layer="features.3")
        tasks.add_tasks(session, first, [pool])
        own = TaskSpec(second, "conv", "conv", 2, 1.0, True, "", ())
        variant = TaskSpec(second, "winograd", "conv", 2, 1.0, True, "", (), "winograd", "conv")
        tasks.add_tasks(session, second, [own, variant])
    return Jobs(service, first, second)


def test_subgraphs_options_and_latencies_are_compared(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["diff", jobs.first, jobs.second[:-1], "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == [jobs.first, jobs.second]
    assert found["latency_s"] == [1e-3, 1.1e-3]
    assert found["speedup"] == pytest.approx(1 / 1.1)
    assert found["options"] == {"trials": [10, 20], "exact": [False, True]}
    rows = {one["workload"]: one for one in found["subgraphs"]}
    assert found["subgraphs"][0] == {
        "workload": "conv",
        "name": "name of \ufffdconv",
        "weights": [2, 2],
        "latency_s": [4e-4, 2e-4],
        "schedule": "changed",
        "speedup": 2.0,
    }
    schedules = {name: one["schedule"] for name, one in rows.items()}
    assert schedules == {"conv": "changed", "pool|2": "same", "gone": "only in the first", "new|2": "changed"}
    assert rows["new|2"]["speedup"] is None


def test_the_table_has_units_and_lists_differing_options(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["diff", jobs.first, jobs.second]) == ExitCode.OK
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        f"first relu on {DEVICE.name}, job {jobs.first}",
        f"second relu on {DEVICE.name}, job {jobs.second}",
        "subgraph times first second second is schedule",
    ]
    assert "name of \ufffdconv 2 400 us 200 us 2.00x faster changed" in lines
    assert "features.3: max_pool2d 1 100 us 100 us same same" in lines
    assert "name of \ufffdgone 1 50 us - - only in the first" in lines
    assert lines[-3:] == [
        "whole model 1 1 ms 1.1 ms 1.10x slower",
        "trials: 10 -> 20",
        "exact: False -> True",
    ]


def test_classes_are_named_and_told_apart(
    jobs: Jobs, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = Worker(jobs.service.fleet, id="twin", device=replace(worker.device, cores=7))
    twin.call()
    there = publish(jobs.service, twin, packed(entry("conv", 4e-4)), 1e-3, target=twin.device.key)
    assert run(app, ["diff", jobs.first, there]) == ExitCode.OK
    *_, target, device = capsys.readouterr().out.splitlines()
    assert target == f"target: native -> {DEVICE.name} (twin)"
    assert device == f"device: {DEVICE.name} (board) -> {DEVICE.name} (twin)"


def test_a_job_without_an_artifact_is_refused(jobs: Jobs, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = jobs.service.submit()
    assert run(app, ["diff", jobs.first, waiting]) == ExitCode.REFUSED
    assert f"Job {waiting} is queued: its tuned model can be fetched" in capsys.readouterr().err
    assert run(app, ["diff", jobs.first, "nobody"]) == ExitCode.REFUSED


@pytest.mark.parametrize("content", [b"no tar", packed().replace(b"tasks", b"texts")])
def test_a_damaged_artifact_is_reported(
    content: bytes, jobs: Jobs, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = publish(jobs.service, worker, content, 1e-3)
    assert run(app, ["diff", jobs.first, damaged]) == ExitCode.REFUSED
    assert "damaged artifact" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("allowed", "code"), [("5%", 11), ("9.9", 11), ("10.1%", 0), ("1000%", 0), ("0%", 11)]
)
def test_a_regression_beyond_the_limit_fails(
    allowed: str, code: int, jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    run(app, ["release", "set", "production", jobs.first])
    capsys.readouterr()
    arguments = ["check", jobs.second, "--baseline", "production", "--max-regression", allowed]
    assert run(app, arguments) == code
    shown = capsys.readouterr()
    mark = "❌" if code else "✅"
    assert shown.out.startswith(f"### {mark} relu: 10.0% slower than `production`\n")
    assert f"is allowed. Measured on {DEVICE.name}.\n" in shown.out
    assert "| whole model | 1 ms | 1.1 ms | 1.10x slower |" in shown.out
    assert "| name of \ufffdconv | 400 us | 200 us | 2.00x faster |" in shown.out
    assert "| name of \ufffdnew\\|2 | - | 60 us | - |" in shown.out
    assert "pool" not in shown.out
    assert ("relu is 10.0% slower than production" in shown.err) is bool(code)
    assert run(app, [*arguments, "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["baseline"]) == (not code, "production")
    assert found["regression"] == pytest.approx(0.1)


def test_a_release_of_another_model_or_other_shapes_is_warned_of(
    jobs: Jobs, worker: Worker, capsys: pytest.CaptureFixture[str]
) -> None:
    service, same = jobs.service, packed(entry("conv", 4e-4))
    run(app, ["release", "set", "production", jobs.first])
    changed = service.upload(onnx_model(5))
    renamed = service.http.post("/v1/models?name=net", content=onnx_model(6)).json()["sha256"]
    said = {
        publish(service, worker, same, 1e-3, model=renamed): "production is another model, relu, not net",
        publish(service, worker, same, 1e-3, model=changed): "production was tuned from another file relu",
        publish(service, worker, same, 1e-3, shapes={"x": [4]}): "other shapes, those of the file, not x=4",
        jobs.second: "",
    }
    for job, warning in said.items():
        capsys.readouterr()
        arguments = ["check", job, "--baseline", "production", "--max-regression", "11%"]
        assert run(app, arguments) == ExitCode.OK, "a warning leaves the exit code as it is"
        shown = capsys.readouterr()
        assert [line[:17] for line in shown.err.splitlines()] == ["warning: producti"] * bool(warning)
        assert warning in shown.err
        assert ("\n\n⚠️ Warning: production " in shown.out) is bool(warning)
        assert warning in shown.out
        assert run(app, [*arguments, "--json"]) == ExitCode.OK
        found = json.loads(capsys.readouterr().out)["warnings"]
        assert len(found) == bool(warning)
        assert warning in "".join(found)


def test_a_model_file_selects_the_newest_job(
    jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(app, ["release", "set", "production", jobs.second])
    jobs.service.submit()  # newer, but not done
    (tmp_path / "relu.onnx").write_bytes(onnx_model())
    arguments = ["check", str(tmp_path / "relu.onnx"), "--baseline", "production", "--json"]
    capsys.readouterr()
    assert run(app, arguments) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["jobs"] == [jobs.second, jobs.second]
    assert run(app, arguments[:-1]) == ExitCode.OK
    assert "relu: as fast as `production`\n" in capsys.readouterr().out
    (tmp_path / "relu.onnx").write_bytes(onnx_model(5))
    assert run(app, arguments) == ExitCode.BAD_INPUT
    assert "relu.onnx is done: run `tunefarm tune" in capsys.readouterr().err


@pytest.mark.parametrize("percent", ["", "%", "-1%", "nan", "inf", "1001%", "five"])
def test_a_wrong_percentage_is_refused(percent: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", "job", "--baseline", "production", "--max-regression", percent]
    assert run(app, arguments) == ExitCode.USAGE
    assert "between 0% and 1000%" in capsys.readouterr().err


def test_an_unknown_baseline_lists_the_valid_baselines(
    jobs: Jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["check", jobs.second, "--baseline", "production"]
    assert run(app, arguments) == ExitCode.REFUSED
    refusal = f"no release 'production' is on {DEVICE.name} (known there: none): set one with"
    assert refusal in capsys.readouterr().err
    run(app, ["release", "set", "canary", jobs.first])
    assert run(app, arguments) == ExitCode.REFUSED
    assert "(known there: canary): set one with" in capsys.readouterr().err
