"""What a device class can do, as its calibration measured it: speeds, where `core.device` has sizes.

The analytic estimate works in cycles of one core. Nothing in it is a speed of one processor: it takes all of
them from a `Profile`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FLOAT32 = "float32"
MAX_TYPE_CHARS = 16
# Of how calibration measures: what another version measured is measured again.
VERSION = 1


@dataclass(frozen=True)
class Profile:
    """Speeds of one core, but for `memory_rate_all` and `launch_s`.

    hertz            cycles a second while vectors are multiplied
    multiply_adds    vector multiply-adds a cycle, by element type; vectors have the device's `vector_bytes`
    latency_cycles   from a multiply-add to the next one that needs its result
    registers        vector registers of the instruction set
    loads            vector loads a cycle, from the first cache
    gather_cycles    a lane that is loaded from a row of its own
    l1_rate ...      bytes a cycle drawn from each cache and from memory
    memory_rate_all  bytes a cycle that all cores together draw from memory
    launch_s         seconds to start all threads and to wait for them
    derived          the fields that weren't measured, but follow from others or from the instruction set
    """

    hertz: float
    multiply_adds: Mapping[str, float]
    latency_cycles: float
    registers: int
    loads: float
    gather_cycles: float
    l1_rate: float
    l2_rate: float
    l3_rate: float
    memory_rate: float
    memory_rate_all: float
    launch_s: float
    derived: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for a speed that no device has."""
        object.__setattr__(self, "multiply_adds", dict(self.multiply_adds))
        object.__setattr__(self, "derived", tuple(self.derived))
        if FLOAT32 not in self.multiply_adds:
            raise ValueError("a profile says how many float32 multiply-adds a core does in a cycle")
        for name in self.multiply_adds:
            if not name.isalnum() or not name.isascii() or len(name) > MAX_TYPE_CHARS:
                raise ValueError(f"{name[:MAX_TYPE_CHARS]!r} is no element type")
        if not set(self.derived) <= {f.name for f in fields(self)}:
            raise ValueError("what is derived in a profile must be its fields")
        if not isinstance(self.registers, int):
            raise ValueError("a profile's registers must be counted in whole numbers")
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_NUMBERS}
        numbers |= {f"multiply_adds of {dtype}": rate for dtype, rate in self.multiply_adds.items()}
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise ValueError(f"a profile's {name} must be a number, not {number!r}")
            if not 0.0 < number < 1e15:
                raise ValueError(f"a profile's {name} must be positive and finite, not {number}")

    def issue(self, dtype: str) -> float:
        """Vector multiply-adds a cycle of an element type; as of float32 where it wasn't measured."""
        return self.multiply_adds.get(dtype, self.multiply_adds[FLOAT32])

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Raises ValueError when the text is no profile."""
        try:
            facts: dict[str, Any] = json.loads(text)
            return cls(**facts)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a profile: {error}") from error


_NO_NUMBERS = ("multiply_adds", "derived")


def assumed(machine: str, features: tuple[str, ...], cores: int) -> Profile:
    """The profile of a device that wasn't calibrated: what an ordinary core with its instruction set does."""
    is_x86 = machine in ("x86_64", "i686")
    wide = "avx512f" in features
    registers = 32 if wide or not is_x86 else 16
    has_fma = not is_x86 or "fma" in features or wide
    return Profile(
        hertz=3.0e9,
        multiply_adds={FLOAT32: 2.0 if has_fma else 1.0},
        latency_cycles=4.0 if has_fma else 8.0,
        registers=registers,
        loads=2.0,
        gather_cycles=1.5,
        l1_rate=128.0 if wide else 64.0,
        l2_rate=48.0 if wide else 32.0,
        l3_rate=24.0 if wide else 16.0,
        memory_rate=6.0,
        memory_rate_all=6.0 * min(cores, 2),
        launch_s=1e-6,
        derived=tuple(f.name for f in fields(Profile) if f.name != "derived"),
    )
