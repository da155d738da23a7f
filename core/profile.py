"""Profiles: the calibrated speeds of a device class.

The analytic estimate of the search counts cycles of one core, and takes all speeds from a `Profile`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from core.instruction_sets import X86_ARCHS

FLOAT32 = "float32"
# The prefix of a rate of dot products, such as "dotbfloat16". The rate of "int8" is its dot products' rate.
DOT = "dot"
# The prefix of a rate of AMX's products of tiles: "amxint8" and "amxbfloat16".
AMX = "amx"
# The vectors of 64 bytes that AMX multiplies in a cycle: a product of tiles of 16x64 bytes takes 16 cycles.
AMX_RATE, AMX_VECTOR_BYTES = 16.0, 64
MAX_TYPE_CHARS = 16
# The version of calibration: profiles measured by another version are measured again.
VERSION = 5


@dataclass(frozen=True)
class Profile:
    """Speeds of one core, except for `memory_rate_all` and `launch_s`. A core of a GPU is a multiprocessor.

    hertz clock rate in cycles per second during vector multiplications multiply_adds vector multiply-adds per
    cycle, by element type; vectors have the device's `vector_bytes` latency_cycles cycles from a multiply-add
    to the next one that needs its result registers vector registers of the instruction set loads vector loads
    per cycle from the first cache gather_cycles cycles to load one lane from a row of its own l1_rate ...
    bytes per cycle read from each cache and from memory memory_rate_all bytes per cycle that all cores
    together read from memory launch_s seconds to start all threads and wait for them derived fields that
    weren't measured, but follow from others or from the instruction set

    On a GPU, `hertz` is the clock that the device names. The first cache is shared memory, the second and
    third are the cache that all multiprocessors share. `gather_cycles` is the latency of a load from memory.
    `launch_s` is the time that one more kernel adds to a CUDA graph. `multiply_adds` also has the rates of
    tensor cores, under "tensor" and the type; float32 is multiplied there in TF32. A CPU's rate of dot
    products of bfloat16, in vectors of operands, is under "dotbfloat16", and AMX's rates are under "amxint8"
    and "amxbfloat16".
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
        object.__setattr__(self, "multiply_adds", dict(self.multiply_adds))
        object.__setattr__(self, "derived", tuple(self.derived))
        if FLOAT32 not in self.multiply_adds:
            raise ValueError("a profile must have the float32 multiply-adds of a cycle")
        for name in self.multiply_adds:
            if not name.isalnum() or not name.isascii() or len(name) > MAX_TYPE_CHARS:
                raise ValueError(f"{name[:MAX_TYPE_CHARS]!r} is no element type")
        if not set(self.derived) <= {f.name for f in fields(self)}:
            raise ValueError("the derived fields of a profile must be fields that it has")
        if not isinstance(self.registers, int):
            raise ValueError("a profile's registers must be a whole number")
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_NUMBERS}
        numbers |= {f"multiply_adds of {dtype}": rate for dtype, rate in self.multiply_adds.items()}
        for name, number in numbers.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise ValueError(f"a profile's {name} must be a number, not {number!r}")
            if not 0.0 < number < 1e15:
                raise ValueError(f"a profile's {name} must be positive and finite, not {number}")

    def issue(self, dtype: str) -> float:
        """Return the vector multiply-adds per cycle of an element type; float32's if it wasn't measured."""
        return self.multiply_adds.get(dtype, self.multiply_adds[FLOAT32])

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Return the profile in a JSON text. Raises ValueError for an invalid one."""
        try:
            facts: dict[str, Any] = json.loads(text)
            return cls(**facts)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a profile: {error}") from error


_NO_NUMBERS = ("multiply_adds", "derived")


@functools.cache
def assumed_profile(arch: str, features: tuple[str, ...], cores: int) -> Profile:
    """Return the profile of an uncalibrated device: an ordinary core with the device's instruction sets."""
    is_x86 = arch in X86_ARCHS
    wide = "avx512f" in features
    registers = 32 if wide or not is_x86 else 16
    has_fma = not is_x86 or "fma" in features or wide
    rates = {FLOAT32: 2.0 if has_fma else 1.0}
    vector_bytes = 64 if wide else 32 if "avx2" in features else 16
    for feature, rate in (("amx_int8", AMX + "int8"), ("amx_bf16", AMX + "bfloat16")):
        if feature in features:
            rates[rate] = AMX_RATE * AMX_VECTOR_BYTES / vector_bytes
    return Profile(
        hertz=3.0e9,
        multiply_adds=rates,
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


@functools.cache
def assumed_gpu_profile(multiprocessors: int) -> Profile:
    """Return the profile of an uncalibrated GPU with this number of multiprocessors."""
    return Profile(
        hertz=1.4e9,
        multiply_adds={
            FLOAT32: 16.0,
            "float16": 16.0,
            "int32": 16.0,
            "tensorfloat16": 64.0,
            "tensorbfloat16": 64.0,
            "tensorint8": 32.0,
            "tensorfloat32": 64.0,
        },
        latency_cycles=8.0,
        registers=64 << 10,
        loads=8.0,
        gather_cycles=500.0,
        l1_rate=128.0,
        l2_rate=32.0,
        l3_rate=32.0,
        memory_rate=10.0,
        memory_rate_all=10.0 * multiprocessors,
        launch_s=1e-6,
        derived=tuple(f.name for f in fields(Profile) if f.name != "derived"),
    )
