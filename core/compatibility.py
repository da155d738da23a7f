"""Find the device classes whose schedules another class can use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict

from core.device import WARPGROUPS_ON, Device


def nearest(asked: Device, known: Iterable[Device]) -> list[Device]:
    """Return the known device classes whose schedules run on `asked`, the nearest first, without `asked`
    itself.
    """
    usable = [other for other in known if other.key != asked.key and _is_usable(asked, other)]
    return sorted(usable, key=lambda other: (_distance(asked, other), other.key))


def _is_usable(asked: Device, other: Device) -> bool:
    """Return whether code for the other class needs nothing that the asked class lacks."""
    if asked.gpu and other.gpu:
        limits, needs = asdict(asked.gpu), asdict(other.gpu)
        # A kernel for warps of 32 threads is wrong on others, and warpgroups multiply on one capability only.
        same = ["warp_size", "capability"] if other.gpu.capability == WARPGROUPS_ON else ["warp_size"]
        return all(needs[name] == limits[name] for name in same) and all(
            needs[name] <= limits[name] for name in limits
        )
    if asked.gpu or other.gpu:
        return False
    has_features = set(other.features) <= set(asked.features)
    return asked.arch == other.arch and has_features and other.vector_bytes <= asked.vector_bytes


def _distance(asked: Device, other: Device) -> tuple[bool, float]:
    """Return whether the toolchains differ, and the sum of the log ratios of the sizes. The toolchain decides
    what a trace means.
    """
    sizes = [
        (getattr(asked, name), getattr(other, name))
        for name in ("vector_bytes", "cores", "l1_bytes", "l2_bytes", "l3_bytes")
    ]
    return asked.toolchain != other.toolchain, sum(abs(math.log(mine / its)) for mine, its in sizes)
