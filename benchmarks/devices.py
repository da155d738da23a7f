"""One machine as several device classes: what it is, and what it is without some of its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from compiler.measuring.calibration import calibrate

from compiler.measuring.cores import bind_pool
from compiler.target import probe
from search.device import Device

# What each class gives up, and with it everything that needs that.
GIVEN_UP: Mapping[str, tuple[str, ...]] = {"avx512": (), "avx2": ("avx512f",), "sse42": ("avx",)}


def calibrated(name: str, threads: int) -> Device:
    """The device class of this name, with its profile. Wants a process of its own, with TVM_NUM_THREADS in
    the environment. Raises ValueError where the machine lacks what the class has."""
    bind_pool(threads)
    device = probe(threads, without=GIVEN_UP[name])
    return replace(device, profile=calibrate(device))
