"""What workers may claim to have measured: they are other people's machines.

Nobody but the device knows how long a candidate took, and a bound from its operations would refuse honest
results: of a transposed convolution most products are with zeros and need no time. So only what no machine
can do is refused here; what schedules are worth is decided by the whole model, timed beside the untuned one.
"""

from __future__ import annotations

from dataclasses import replace

from proto.values import Outcome, Result

# A few dozen cycles: calling a compiled function takes longer.
SHORTEST_S = 1e-8


def believed(result: Result) -> Result:
    """The result, or in place of an impossible one a failure that says so."""
    measurement = result.measurement
    shortest_s = min(measurement.run_secs, default=SHORTEST_S)
    if shortest_s >= SHORTEST_S:
        return result
    problem = f"the worker's measurement made no sense: no call takes {shortest_s:g} s"
    refused = replace(measurement, outcome=Outcome.UNKNOWN, run_secs=(), error=problem)
    return replace(result, measurement=refused)
