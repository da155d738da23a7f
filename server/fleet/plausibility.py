"""Rejects results that no machine can have measured: a worker may send anything.

Only impossible values are rejected. Only the device knows how long a candidate took. A bound from its
operations would reject honest results: most products of a transposed convolution are with zeros and take no
time. The timing of the whole model, in turns with the untuned one, decides whether its schedules help.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from core.measurement import Measurement, Outcome
from proto.messages import Result, WorkerReport

_log = logging.getLogger(__name__)

# A few cycles. A kernel that copies 64 numbers takes 6 ns when it is called repeatedly.
MIN_PLAUSIBLE_S = 1e-9
# Eleven days. Workers end runs that take minutes, and the median of longer times could be infinite.
MAX_PLAUSIBLE_S = 1e6
# The bounds of a profile's fields, from the speed of an emulator to several times the speed of any core or
# GPU multiprocessor. `core.profile.Profile` defines the units.
PROFILE_RANGES = {
    "hertz": (1e5, 2e10),
    "latency_cycles": (0.1, 1e5),
    "registers": (4, 1 << 17),
    "loads": (1e-5, 64),
    "gather_cycles": (1e-3, 1e5),
    "l1_rate": (1e-3, 1e4),
    "l2_rate": (1e-3, 1e4),
    "l3_rate": (1e-3, 1e4),
    "memory_rate": (1e-3, 1e4),
    "memory_rate_all": (1e-3, 1e6),
    "launch_s": (1e-9, 10.0),
}
MULTIPLY_ADDS_RANGE = (1e-6, 1024)


def reject_implausible(result: Result) -> Result:
    """Return the result, or a failure in place of times that no machine can have measured."""
    measurement = result.measurement
    implausible = [secs for secs in measurement.run_s if not MIN_PLAUSIBLE_S <= secs <= MAX_PLAUSIBLE_S]
    if not implausible:
        return result
    error = f"the worker's measurement is impossible: no call takes {implausible[0]:g} s"
    failed = Measurement(Outcome.UNKNOWN, build_s=measurement.build_s, error=error)
    return replace(result, measurement=failed)


def reject_implausible_profile(report: WorkerReport) -> WorkerReport:
    """Return the report. A profile that no machine can have is dropped and logged."""
    device = report.device
    if device is None or device.profile is None:
        return report
    profile = device.profile
    values = [(name, getattr(profile, name), limits) for name, limits in PROFILE_RANGES.items()]
    for dtype, rate in profile.multiply_adds.items():
        values.append((f"multiply_adds of {dtype}", rate, MULTIPLY_ADDS_RANGE))
    for name, number, (least, most) in values:
        if not least <= number <= most:
            sentence = "the profile of worker %s is rejected: no machine has %s of %g"
            _log.warning(sentence, report.worker_id, name, number)
            return replace(report, device=replace(device, profile=None))
    return report
