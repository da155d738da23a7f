"""A job of a small network on the stand-in for a GPU, from attaching the worker to the published library."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests import onnx_models
from tests.cuda_emulator.driver import StandIn
from tests.processes import START_S, Service, service, until, worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# An embedded stack plans ahead for GPUs only.
SETTINGS = {
    "TUNEFARM_PLAN_AHEAD": "0",
    "TUNEFARM_BATCH_SIZE": "4",
    "TUNEFARM_WORKER_RUN_TIMEOUT_S": str(START_S),
}


def small_network(rows: int = 8) -> bytes:
    """A matrix product with an epilogue, and a row-wise function after it."""
    builder = onnx_models.Builder()
    hidden = builder.op("Relu", builder.op("Gemm", "input", builder.weight(16, 24), builder.weight(24)))
    return builder.model({"input": [rows, 16]}, {builder.op("Softmax", hidden, axis=-1): [rows, 24]})


def is_busy_ahead(farm: Service, scratch: Path) -> bool:
    """Return whether the next round is planned and the next candidate is built before the first result."""
    with closing(sqlite3.connect(farm.folder / "tunefarm.db")) as database:
        trials = database.execute("SELECT id, round, state FROM trials ORDER BY id").fetchall()
    assert "done" not in {state for _, _, state in trials}, "the GPU waits"
    built = {int(path.name) for path in scratch.glob("*/tunefarm-libraries-*/*")}
    ids = [trial_id for trial_id, _, _ in trials]
    return {number for _, number, _ in trials} == {0, 1} and built - {ids[0]} == {ids[1]}


@pytest.mark.slow_lane(seconds=26)
def test_a_network_is_tuned_verified_timed_and_published(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, model = tmp_path / "scratch", tmp_path / "tiny.onnx"
    scratch.mkdir()
    model.write_bytes(small_network())
    stand_in.behave("launch 1 wait")
    for name, value in {**stand_in.environment, "TMPDIR": str(scratch)}.items():
        monkeypatch.setenv(name, value)
    with service(tmp_path, SETTINGS) as farm, worker(farm, "gpu-host", "--gpu", "1", "--threads", "1"):
        shown = farm.shown("gpu-host")
        assert (shown["cores"], shown["power_w"], shown["temperature_c"]) == (4, 87.5, 41.0)
        assert shown["driver"] == "580.0 (stand-in)"
        stand_in.barrier.touch()
        with farm.start_tuning(model, "--trials", "8", "--output", "tuned") as tuning:
            try:
                until(lambda: is_busy_ahead(farm, scratch), START_S)
            finally:
                stand_in.barrier.unlink()
            out, errors = tuning.communicate()
    assert tuning.returncode == 0, errors
    assert "rejected" not in (tmp_path / "server.log").read_text()
    result = json.loads(out)
    assert result["job"]["state"] == "done"
    assert all(task["best_s"] for task in result["tasks"] if task["covered"] and not task["variant"])
    assert result["tuned_latency_s"] <= result["untuned_latency_s"]
    manifest = json.loads((tmp_path / "tuned" / "manifest.json").read_text())
    assert json.loads(manifest["target"])["arch"] == "sm_80"
    assert any(task["trace"] for task in manifest["tasks"])


@pytest.mark.slow_lane(seconds=18)
def test_with_tf32_products_are_also_measured_in_tf32(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stand_in.environment.items():
        monkeypatch.setenv(name, value)
    model = tmp_path / "tiny.onnx"
    model.write_bytes(small_network(rows=32))
    with service(tmp_path) as farm, worker(farm, "gpu-host", "--gpu", "1", "--threads", "1"):
        tuning = farm.start_tuning(model, "--trials", "6", "--output", "tuned", "--tf32")
        out, errors = tuning.communicate()
    assert tuning.returncode == 0, errors
    result = json.loads(out)
    assert result["job"]["state"] == "done"
    [task] = (task for task in result["tasks"] if task["variant"] == "tf32")
    assert task["best_s"], "it was verified and timed"
