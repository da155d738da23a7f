"""What workers may claim to have measured: they are other people's machines.

Nobody but the device knows how long a candidate took, and a bound from its operations would refuse honest
results: of a transposed convolution most products are with zeros and need no time. So only what no machine
can do is refused here; what schedules are worth is decided by the whole model, timed beside the untuned one.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from core.measurement import Measurement, Outcome
from proto.messages import Result, WorkerReport

_log = logging.getLogger(__name__)

# A few cycles. Called again and again, a kernel that copies 64 numbers takes 6 ns.
SHORTEST_S = 1e-9
# Eleven days; workers end what takes minutes. The median of longer times could be no number any more.
LONGEST_S = 1e6
# What a profile may say, from what an emulator takes to several times what any core does: cycles a second,
# cycles, vector instructions and bytes a cycle, registers, seconds.
PROFILE_RANGES = {
    "hertz": (1e5, 2e10),
    "latency_cycles": (0.1, 1e5),
    "registers": (4, 1024),
    "loads": (1e-5, 64),
    "gather_cycles": (1e-3, 1e5),
    "l1_rate": (1e-3, 1e4),
    "l2_rate": (1e-3, 1e4),
    "l3_rate": (1e-3, 1e4),
    "memory_rate": (1e-3, 1e4),
    "memory_rate_all": (1e-3, 1e6),
    "launch_s": (1e-9, 10.0),
}
MULTIPLY_ADDS = (1e-6, 64)


def reject_implausible(result: Result) -> Result:
    """The result, or in place of an impossible one a failure that says so."""
    measurement = result.measurement
    senseless = [secs for secs in measurement.run_secs if not SHORTEST_S <= secs <= LONGEST_S]
    if not senseless:
        return result
    problem = f"the worker's measurement made no sense: no call takes {senseless[0]:g} s"
    refused = Measurement(Outcome.UNKNOWN, build_secs=measurement.build_secs, error=problem)
    return replace(result, measurement=refused)


def reject_implausible_profile(report: WorkerReport) -> WorkerReport:
    """The report, its device without a profile that no calibration can have measured; that is logged."""
    device = report.device
    if device is None or device.profile is None:
        return report
    profile = device.profile
    said = [(name, getattr(profile, name), limits) for name, limits in PROFILE_RANGES.items()]
    rates = profile.multiply_adds.items()
    said += [(f"multiply_adds of {dtype}", rate, MULTIPLY_ADDS) for dtype, rate in rates]
    for name, number, (least, most) in said:
        if not least <= number <= most:
            problem = "the profile of worker %s is refused: no machine has %s of %g"
            _log.warning(problem, report.worker_id, name, number)
            return replace(report, device=replace(device, profile=None))
    return report
