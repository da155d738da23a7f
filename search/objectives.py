"""The objectives that jobs minimize: functions of their networks' latencies, from the paper (table 2) or from
users.

The allocator needs only an objective's slopes: how much it falls when a network becomes faster. The slopes of
the paper's f3, the geometric mean of speed-ups, don't depend on the reference latencies, so f3 needs none. f4
stops tasks rather than weighing networks: `TaskProgress.has_stalled` says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

# The fraction by which a network's latency is varied to compute a slope.
STEP = 1e-3


class ObjectiveError(ValueError):
    """An objective is unusable. The message says why."""


@dataclass(frozen=True)
class Network:
    """A model of a job: its estimated latency, its `weight`, and its required latency, 0 if there is none.
    Both latencies are seconds.
    """

    name: str
    latency_s: float
    weight: float = 1.0
    required_s: float = 0.0


# Returns the value to minimize.
Objective: TypeAlias = Callable[[Sequence[Network]], float]


def weighted_sum(networks: Sequence[Network]) -> float:
    """f1 of the paper."""
    return sum(network.weight * network.latency_s for network in networks)


def requirements(networks: Sequence[Network]) -> float:
    """f2: networks count only as far as they exceed their required latency."""
    return sum(network.weight * max(network.latency_s, network.required_s) for network in networks)


def speedup(networks: Sequence[Network]) -> float:
    """f3: the weighted geometric mean of the latencies, so a percent of any network counts alike."""
    whole = sum(network.weight for network in networks)
    return math.exp(sum(network.weight * math.log(network.latency_s) for network in networks) / whole)


# f4 is f1 over the tasks that haven't stalled.
EARLY_STOPPING = "early-stopping"
OBJECTIVES: Mapping[str, Objective] = {
    "sum": weighted_sum,
    "requirements": requirements,
    "speedup": speedup,
    EARLY_STOPPING: weighted_sum,
}


def slopes(objective: Objective, networks: Sequence[Network]) -> list[float]:
    """Return how much the objective falls for each second that a network saves, 1 on average.

    Raises ObjectiveError if the objective fails or isn't finite.
    """
    try:
        now = float(objective(networks))
        gains = []
        for at, network in enumerate(networks):
            faster = replace(network, latency_s=network.latency_s * (1 - STEP))
            after = float(objective([*networks[:at], faster, *networks[at + 1 :]]))
            gains.append((now - after) / (STEP * network.latency_s))
    except Exception as error:
        raise ObjectiveError(f"the objective failed ({type(error).__name__}: {error})") from error
    if not all(map(math.isfinite, (now, *gains))):
        raise ObjectiveError("the objective is not finite")
    # If an objective rises when a network becomes faster, its slope counts as 0.
    gains = [max(gain, 0.0) for gain in gains]
    mean = sum(gains) / len(gains)
    return [gain / mean for gain in gains] if mean else [1.0] * len(networks)
