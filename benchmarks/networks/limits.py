"""The distance of a network's subgraphs from the machine's limits."""

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
    """The calibrated limits of all cores together: float32 operations, and bytes from memory."""

    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of(cls, device: DeviceClass) -> Self:
        """Return the limits of a device class. Raises ValueError if it wasn't calibrated."""
        if device.profile is None:
            raise ValueError(f"{device.name} wasn't calibrated")
        limits = roofline.Limits(Profile(**device.profile), device.vector_bytes, device.cores)
        return cls(limits.flops_per_s(), limits.bytes_per_s)


@dataclass(frozen=True)
class Part:
    """A subgraph's seconds in one run of its network: measured, and a lower limit. The limit is its
    operations at the machine's peak, or its operands at the memory's bandwidth, whichever takes longer. A
    cache can be faster."""

    name: str
    variant: str
    weight: int
    measured_s: float
    limit_s: float

    @property
    def above_s(self) -> float:
        return self.measured_s - self.limit_s


def parts_of(tasks: Sequence[Task], limits: Limits) -> list[Part]:
    """Return the parts of a network, those farthest above their limits first."""
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
