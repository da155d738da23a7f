"""Watch a GPU's clocks while kernels are timed. A measurement on a throttled GPU is worthless."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import pynvml

# How often to try a measurement, and the pause between tries in which the GPU cools down.
TRIES, PAUSE_S = 3, 1.0
# If the clock falls by more than this fraction during a measurement, the GPU was throttled.
MAX_CLOCK_DROP = 0.1
# NVML's throttle reasons, except an idle GPU and the power limit, which applies to heavy kernels at all
# times.
REASONS = {
    8: "the hardware slows it down",
    32: "it is too hot",
    64: "the hardware is too hot",
    128: "the power supply brakes it",
}
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Reading:
    """The clock of the multiprocessors in megahertz, and the throttle reason; "" without one."""

    megahertz: int
    held_back: str


class GpuClocks:
    """Reads the clocks of the first GPU in CUDA_VISIBLE_DEVICES, by default of the first GPU.

    A GPU whose clocks can't be read counts as steady. Jetsons and some MIG slices are such GPUs.
    """

    def __init__(self) -> None:
        self._handle = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            uuid = os.environ.get(VISIBLE_DEVICES_VARIABLE, "")
            by_uuid = uuid.startswith(("GPU-", "MIG-"))
            self._handle = (
                pynvml.nvmlDeviceGetHandleByUUID(uuid) if by_uuid else pynvml.nvmlDeviceGetHandleByIndex(0)
            )

    def read(self) -> Reading | None:
        """Return the current clocks; None if NVML doesn't report them."""
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
        """Measure, and repeat while the GPU is throttled. Return the last measurement and its throttle
        reason; "" without one.
        """
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
    if after.megahertz < (1 - MAX_CLOCK_DROP) * before.megahertz:
        return f"its clock fell from {before.megahertz} to {after.megahertz} MHz"
    return before.held_back or after.held_back
