"""GPUs and MIG slices as NVML reports them, and the choice among them, in processes that see the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cuda_emulator.driver import StandIn

CHOOSE = """
import sys
from system.errors import SettingsError
from worker.agent.gpus import choose_gpu
try:
    print(choose_gpu("only" if sys.argv[1] == "only" else int(sys.argv[1])).uuid)
except SettingsError as error:
    print(error)
"""
VITALS = """
from worker.agent.gpus import GpuVitals, choose_gpu
vitals = GpuVitals(choose_gpu(0))()
print(vitals.temperature_c, vitals.power_w, vitals.memory_free_bytes, vitals.driver)
"""


def said(code: str, *arguments: str, stand_in: StandIn | None = None) -> str:
    environment = {**os.environ, **(stand_in.environment if stand_in else {})}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("behaviour", "index", "answer"),
    [
        ("", "1", "GPU-stand-in-1"),
        ("slices 2", "1", "MIG-stand-in-1"),
        ("slices 1", "only", "MIG-stand-in-0"),
        (
            "",
            "only",
            "this machine has 2 GPUs: start a worker for each with --gpu INDEX, of 0 (stand-in for a GPU), "
            "1 (stand-in for a GPU)",
        ),
    ],
)
def test_a_gpu_or_a_slice_is_chosen_by_its_index(
    stand_in: StandIn, behaviour: str, index: str, answer: str
) -> None:
    stand_in.behave(behaviour)
    assert said(CHOOSE, index, stand_in=stand_in) == answer


def test_a_gpu_index_out_of_range_lists_the_gpus(stand_in: StandIn) -> None:
    answer = said(CHOOSE, "7", stand_in=stand_in)
    assert answer.startswith("this machine has no GPU 7: start a worker for each")


@pytest.mark.parametrize("behaviour", ["", "slices 1"])
def test_a_gpus_vitals_are_read(stand_in: StandIn, behaviour: str) -> None:
    stand_in.behave(behaviour)
    assert said(VITALS, stand_in=stand_in) == "41.0 87.5 805306368 580.0 (stand-in)"


def test_the_error_for_an_old_jetson_says_that_its_gpu_is_too_old(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("NVIDIA Jetson Nano Developer Kit\0")
    choose = (
        f"from pathlib import Path; from worker.agent import gpus; gpus.DEVICE_TREE = Path({str(model)!r})"
    )
    answer = said(f"{choose}{CHOOSE}", "0")
    assert "CUDA 13 has no code for the GPU of this NVIDIA Jetson Nano Developer Kit: leave out" in answer


def test_a_machine_without_a_driver_has_none() -> None:
    assert said(CHOOSE, "0").startswith("there is no GPU to measure: NVML Shared Library Not Found; install")
