"""How near a measured subgraph comes to what its device can do (the roofline model)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from core.profile import FLOAT32, Profile

# Above these shares of the limit, little or nothing is left to gain.
NOTHING_LEFT, LITTLE_LEFT, SOME_LEFT = 0.95, 0.85, 0.6
# Measured above the limit by more than the noise of a calibration.
ABOVE = 1.05
_BITS = re.compile(r"\d+")
_TENSOR = "tensor"


@dataclass(frozen=True)
class Limits:
    """What a calibrated device can do at most with all cores, and operands in memory."""

    profile: Profile
    vector_bytes: int
    cores: int

    @property
    def bytes_per_s(self) -> float:
        return self.profile.memory_rate_all * self.profile.hertz

    def flops_per_s(self, dtype: str = FLOAT32) -> float:
        """Return the operations a second on elements of a type, by tensor cores if they know the type."""
        bits = _BITS.search(dtype)
        item_bytes = max(int(bits[0]) // 8, 1) if bits else 1
        rates = [self.profile.issue(dtype)]
        if dtype != FLOAT32:  # of float32, tensor cores compute TF32
            rates.append(self.profile.multiply_adds.get(_TENSOR + dtype, 0.0))
        lanes = max(self.vector_bytes // item_bytes, 1)
        return 2 * lanes * max(rates) * self.profile.hertz * self.cores

    @classmethod
    def of(cls, profile: Profile | None, vector_bytes: int, cores: int) -> Self | None:
        """Return the limits of a device; None if nobody calibrated it."""
        return None if profile is None else cls(profile, vector_bytes, cores)


def verdict(
    limits: Limits | None, flops: float, num_bytes: float, signature: str, best_s: float | None
) -> str:
    """Return in words how near a subgraph of `best_s` seconds comes to its limit, and what to do about it.

    The limit is the time of its `flops` at the device's peak, or of its operands' `num_bytes` at the memory's
    bandwidth, whichever is longer. The `signature` begins with the type of its first operand. The text is
    empty if the device, the subgraph or its latency isn't known.
    """
    if limits is None or not best_s or max(flops, num_bytes) <= 0:
        return ""
    arithmetic_s = flops / limits.flops_per_s(signature.partition("[")[0] or FLOAT32)
    memory_s = num_bytes / limits.bytes_per_s
    name = "peak arithmetic" if arithmetic_s >= memory_s else "memory bandwidth"
    share = max(arithmetic_s, memory_s) / best_s
    if share > ABOVE:
        # A variant such as Winograd's convolution needs fewer operations than its original.
        is_cached = arithmetic_s < memory_s
        return (
            "faster than memory: its operands stay in a cache"
            if is_cached
            else "faster than the calibrated peak"
        )
    if share >= NOTHING_LEFT:
        advice = "nothing left"
    elif share >= LITTLE_LEFT:
        advice = "little left"
    else:
        advice = "more trials may help" if share >= SOME_LEFT else "try more trials"
    return f"{min(share, 1.0):.0%} of {name}: {advice}"
