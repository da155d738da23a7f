"""Compare a measured subgraph with its device's limits (the roofline model)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from core.profile import AMX, DOT, FLOAT32, Profile

# The fractions of the limit above which the verdict is that nothing, little or something can be gained.
NOTHING_LEFT, LITTLE_LEFT, SOME_LEFT = 0.95, 0.85, 0.6
# Above this fraction, a subgraph exceeds the limit by more than the noise of a calibration.
IMPLAUSIBLE_SHARE = 1.05
_BITS = re.compile(r"\d+")
_TENSOR = "tensor"
# The parts of a verdict that a narrow table leaves out.
_SHORTENED = re.compile(
    r"(?<=%) of (peak arithmetic|memory bandwidth)(?=:)"
    r"|(?<=^faster than memory): .*"
    r"|(?<=^faster than the )calibrated "
)


@dataclass(frozen=True)
class Limits:
    """The highest speeds of a calibrated device with all cores and operands in memory."""

    profile: Profile
    vector_bytes: int
    cores: int

    @property
    def bytes_per_s(self) -> float:
        return self.profile.memory_rate_all * self.profile.hertz

    def flops_per_s(self, dtype: str = FLOAT32) -> float:
        """Return the operations per second for an element type, by dot products, AMX or on tensor cores if
        they support it.
        """
        bits = _BITS.search(dtype)
        item_bytes = max(int(bits[0]) // 8, 1) if bits else 1
        rates = [self.profile.issue(dtype)]
        if dtype != FLOAT32:  # tensor cores compute float32 only as TF32
            # AMX's rate of bytes doesn't depend on their signs.
            names = (_TENSOR + dtype, DOT + dtype, AMX + ("int8" if dtype == "uint8" else dtype))
            rates += [self.profile.multiply_adds.get(name, 0.0) for name in names]
        lanes = max(self.vector_bytes // item_bytes, 1)
        return 2 * lanes * max(rates) * self.profile.hertz * self.cores

    @classmethod
    def of(cls, profile: Profile | None, vector_bytes: int, cores: int) -> Self | None:
        """Return the limits of a device; None if it wasn't calibrated."""
        return None if profile is None else cls(profile, vector_bytes, cores)


def verdict(
    limits: Limits | None, flops: float, num_bytes: float, signature: str, best_s: float | None
) -> str:
    """Describe how close a subgraph of `best_s` seconds is to its limit, and whether more trials may help.

    The limit is the longer of two times: its `flops` at the device's peak, and its operands' `num_bytes` at
    the memory's bandwidth. `signature` begins with the first operand's type. Return "" if the limits, the
    subgraph or its latency are unknown.
    """
    if limits is None or not best_s or max(flops, num_bytes) <= 0:
        return ""
    arithmetic_s = flops / limits.flops_per_s(signature.partition("[")[0] or FLOAT32)
    memory_s = num_bytes / limits.bytes_per_s
    name = "peak arithmetic" if arithmetic_s >= memory_s else "memory bandwidth"
    share = max(arithmetic_s, memory_s) / best_s
    if share > IMPLAUSIBLE_SHARE:
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


def short_verdict(text: str) -> str:
    """Return a verdict without the limit's name or a reason: "41%: try more trials", "faster than memory"."""
    return _SHORTENED.sub("", text)
