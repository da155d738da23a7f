"""What workers may claim to have measured: they are other people's machines.

Nobody but the device knows how long a candidate took, and a bound from its operations would refuse honest
results: of a transposed convolution most products are with zeros and need no time. So only what no machine
can do is refused here; what schedules are worth is decided by the whole model, timed beside the untuned one.
"""

from __future__ import annotations

from dataclasses import replace

from proto.values import Built, Outcome, Result

# A few cycles. Called again and again, a kernel that copies 64 numbers takes 6 ns.
SHORTEST_S = 1e-9
# Eleven days; workers end what takes minutes. The median of longer times could be no number any more.
LONGEST_S = 1e6


def believed(result: Result) -> Result:
    """The result, or in place of an impossible one a failure that says so."""
    measurement = result.measurement
    if isinstance(measurement, Built):
        return result
    senseless = [secs for secs in measurement.run_secs if not SHORTEST_S <= secs <= LONGEST_S]
    if not senseless:
        return result
    problem = f"the worker's measurement made no sense: no call takes {senseless[0]:g} s"
    refused = replace(measurement, outcome=Outcome.UNKNOWN, run_secs=(), error=problem)
    return replace(result, measurement=refused)
