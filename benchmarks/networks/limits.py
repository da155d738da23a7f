"""How far each subgraph of a network is from what its machine can do at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from core import roofline
from core.model_latency import fastest_tasks
from core.profile import Profile
from tunefarm.client.values import DeviceClass, Task


@dataclass(frozen=True)
class Limits:
    """What all cores together can do at most, as calibration measured it, with float32 and from memory."""

    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, device: DeviceClass) -> Self:
        """Raises ValueError for a device class that nobody calibrated."""
        if device.profile is None:
            raise ValueError(f"{device.name} wasn't calibrated")
        limits = roofline.Limits(Profile(**device.profile), device.vector_bytes, device.cores)
        return cls(limits.flops_per_s(), limits.bytes_per_s)


@dataclass(frozen=True)
class Part:
    """A subgraph's share of one run of its network, in seconds: the measured share and a lower limit. The
    limit is its operations at the machine's peak, or its operands at the memory's bandwidth; a cache can be
    faster.
    """

    name: str
    variant: str
    weight: int
    measured_s: float
    limit_s: float

    @property
    def above_s(self) -> float:
        return self.measured_s - self.limit_s


def parts_of(tasks: Sequence[Task], limits: Limits) -> list[Part]:
    """Return the parts of a network, the one farthest above its limit first."""
    parts = [
        Part(
            task.name,
            task.variant,
            task.weight,
            task.weight * task.best_s,
            task.weight * max(task.flops / limits.flops_per_s, task.num_bytes / limits.bytes_per_s),
        )
        for task in fastest_tasks(tasks)
        if task.best_s is not None
    ]
    return sorted(parts, key=lambda part: -part.above_s)
