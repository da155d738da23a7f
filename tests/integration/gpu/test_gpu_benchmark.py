"""The complete GPU benchmark with tiny shapes on the stand-in, whose figures are meaningless."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu.device import MEANINGLESS
from benchmarks.results import figures
from tests.cuda_emulator.driver import StandIn


def benchmark(*arguments: str, stand_in: StandIn | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(stand_in.environment if stand_in else {})}
    command = [sys.executable, "-m", "benchmarks.gpu", "--threads", "1", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow_lane(seconds=120)
@pytest.mark.timeout(1800)
def test_the_gpu_benchmark_is_complete_on_the_stand_in(stand_in: StandIn, tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    given = ("--tiny", "--operator", "GMM", "--network", "dcgan", "--trials", "2", "--network-trials", "2")
    done = benchmark(*given, "--rounds", "1", "--json", str(file), stand_in=stand_in)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its figures MEAN NOTHING" in done.stdout
    results = figures.read(file)
    assert "stand-in for a GPU" in results.machine
    assert all(one.name.startswith(MEANINGLESS) and one.aim is None for one in results.figures)
    names = [one.name.removeprefix(MEANINGLESS) for one in results.figures]
    assert "GMM: speed-up over MetaSchedule, after 2 trials" in names
    assert any(name.startswith("searches that never reached MetaSchedule's result") for name in names)
    assert "float16 matrix product of 32: share of the measured peak" in names
    assert "bfloat16 matrix product of 32: share of the measured peak" in names
    assert "tf32 matrix product of 32: share of the measured peak" in names
    assert "dcgan-tiny: latency" in names


@pytest.mark.slow_lane
def test_figures_of_a_stand_in_are_not_stored(stand_in: StandIn) -> None:
    done = benchmark("--json", "docs/benchmarks/gpu.json", stand_in=stand_in)
    assert done.returncode == 1
    assert "figures don't belong into docs/" in done.stderr
    assert not Path("docs/benchmarks/gpu.json").exists()


@pytest.mark.slow_lane
def test_without_a_gpu_the_benchmark_reports_the_reason(tmp_path: Path) -> None:
    done = benchmark("--json", str(tmp_path / "gpu.json"))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "benchmarks.gpu: this machine's GPU could not be measured: CUDA shows no GPU"
    )
    assert done.stderr.endswith("a GPU is needed here, which nvidia-smi shows\n")
