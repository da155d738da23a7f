"""The benchmarked GPU. Figures of the tests' stand-in are marked as meaningless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.results.figures import Figure
from core.device import Device

CALIBRATION_S = 30.0
# The name of the tests' stand-in.
STAND_IN = "stand-in"
MEANINGLESS = "means nothing, no GPU was there: "
# Figures that users read.
STORED = Path(__file__).parents[2] / "docs"


def detect(calibrates: bool) -> Device:
    """Return the first GPU that CUDA shows, with its profile if it `calibrates`.

    Needs its own process. Raises RuntimeError, which says why there is none.
    """
    from compiler.gpus import detect_gpu
    from compiler.measuring.gpu_calibration import calibrate_gpu

    found = detect_gpu()
    return replace(found, profile=calibrate_gpu(found, CALIBRATION_S)) if calibrates else found


def is_stand_in(device: Device) -> bool:
    return device.gpu is not None and STAND_IN in device.gpu.model


def describe(device: Device) -> str:
    """Describe a GPU in one line."""
    assert device.gpu is not None
    capability = f"{device.gpu.capability // 10}.{device.gpu.capability % 10}"
    return f"{device.gpu.model}, {device.cores} multiprocessors, {capability}, CUDA {device.gpu.cuda}"


def without_aims(figures: Sequence[Figure], device: Device) -> list[Figure]:
    """Return the figures. Figures of a stand-in are marked as meaningless and have no aims."""
    if not is_stand_in(device):
        return list(figures)
    return [replace(one, name=MEANINGLESS + one.name, aim=None, bound=None, reached=None) for one in figures]
