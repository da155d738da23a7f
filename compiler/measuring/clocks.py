"""The clocks of a GPU while kernels are timed: what is measured while heat holds them back says nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import pynvml

# How often a measurement is tried, and the pause before it is repeated, in which the GPU may cool down.
TRIES, PAUSE_S = 3, 1.0
# A clock that falls by more than this share during a measurement was held back for part of it.
FALL = 0.1
# NVML's reasons for lower clocks, except an idle GPU and the power limit, which limits the clocks of heavy
# kernels at all times.
REASONS = {
    8: "the hardware slows it down",
    32: "it is too hot",
    64: "the hardware is too hot",
    128: "the power supply brakes it",
}
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Reading:
    """Megahertz of the multiprocessors, and what holds them back; empty when nothing does."""

    megahertz: int
    held_back: str


class GpuClocks:
    """Reads the clocks of the GPU that CUDA_VISIBLE_DEVICES names, or else of the first one.

    A GPU whose clocks can't be read, as on a Jetson and on slices of some GPUs, counts as steady.
    """

    def __init__(self) -> None:
        self._handle = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            uuid = os.environ.get(VISIBLE, "")
            by_uuid = uuid.startswith(("GPU-", "MIG-"))
            self._handle = (
                pynvml.nvmlDeviceGetHandleByUUID(uuid) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
            )

    def read(self) -> Reading | None:
        """Return None where NVML doesn't say."""
        if self._handle is None:
            return None
        try:
            megahertz = pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
            reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except pynvml.NVMLError:
            return None
        held_back = (text for bit, text in REASONS.items() if reasons & bit)
        return Reading(megahertz, " and ".join(held_back))

    def steady(
        self, measure: Callable[[], tuple[float, ...]], sleep: Callable[[float], None] = time.sleep
    ) -> tuple[tuple[float, ...], str]:
        """Measure, again if something held the clocks back. Return the measurement, and what held the clocks
        back at the last try too; empty when nothing did."""
        for attempt in range(TRIES):
            before = self.read()
            measured = measure()
            after = self.read()
            if not (held_back := _held_back(before, after)):
                break
            if attempt < TRIES - 1:
                sleep(PAUSE_S)
        return measured, held_back


def _held_back(before: Reading | None, after: Reading | None) -> str:
    if before is None or after is None:
        return ""
    if after.megahertz < (1 - FALL) * before.megahertz:
        return f"its clock fell from {before.megahertz} to {after.megahertz} MHz"
    return before.held_back or after.held_back
