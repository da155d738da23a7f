"""A CPU as the analytic estimates see it: its measured speeds, and how much of them programs reach."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.device import Device
from core.profile import Profile
from search.dag import Buffer
from search.programs.nest import Floats

LINE_BYTES = 64
PAGE_BYTES = 4096


@dataclass(frozen=True)
class ShapeFactors:
    """What loops reach of a core's speeds, and what their shape costs: numbers of no processor in particular.

    `python -m benchmarks.fit` fits them to measured programs of several device classes. Shares are parts of
    what the calibration measured (`core.profile`) or of a cache's size, `..._cycles` cycles of a core.
    """

    # Speeds: parts of the profile's.
    issue: float = 1.0
    latency: float = 1.1
    loads: float = 1.0
    l1_rate: float = 1.0
    l2_rate: float = 1.0
    l3_rate: float = 1.2
    memory_rate: float = 0.45
    launch: float = 3.75
    gather: float = 3.5
    # How much of each cache a tile can count on.
    l1_share: float = 0.93
    l2_share: float = 0.49
    l3_share: float = 0.44
    # How far rows whose sets collide drive each other out: 0 not at all, 1 as if nothing else chose them.
    crowding: float = 0.08
    branch_cycles: float = 4.8
    # A load whose value is computed on the spot, such as one of a padded operand.
    inline_cycles: float = 0.59
    # A partial result that is added to a sum.
    row_cycles: float = 2.8
    # What a loop around a register tile costs by itself.
    loop_cycles: float = 0.041
    # What jumping to another row costs, in bytes that would have streamed in meanwhile.
    stall_bytes: float = 120.0
    # An accumulator that lives in memory, and how many too many it takes until all of them do.
    spill_cycles: float = 1.0
    spill_all: float = 6.25
    # A vector that is copied: loaded, stored, and loaded again.
    copy_cycles: float = 1.6
    # Instructions that a core looks ahead.
    window: float = 225.0
    # Of all that isn't the longest, this part adds to the time.
    overlap: float = 0.3


FITTED = ShapeFactors()


@dataclass(frozen=True)
class Machine:
    """A device with the speeds that loops reach on it. Rates are bytes a cycle of one core; `memory_rate` is
    that of all cores together."""

    device: Device
    factors: ShapeFactors = FITTED

    @property
    def speeds(self) -> Profile:
        return self.device.speeds

    @property
    def cores(self) -> int:
        return self.device.cores

    @property
    def registers(self) -> int:
        return self.speeds.registers

    @property
    def hertz(self) -> float:
        return self.speeds.hertz

    @property
    def latency_cycles(self) -> float:
        return self.speeds.latency_cycles * self.factors.latency

    @property
    def loads(self) -> float:
        """Vector loads a cycle."""
        return self.speeds.loads * self.factors.loads

    @property
    def gather_cycles(self) -> float:
        return self.speeds.gather_cycles * self.factors.gather

    @property
    def launch_s(self) -> float:
        return self.speeds.launch_s * self.factors.launch

    @property
    def l1_room(self) -> float:
        """Bytes of the first cache that a tile can count on."""
        return self.device.l1_bytes * self.factors.l1_share

    @property
    def l2_room(self) -> float:
        return self.device.l2_bytes * self.factors.l2_share

    @property
    def l3_room(self) -> float:
        return self.device.l3_bytes * self.factors.l3_share

    @property
    def l1_rate(self) -> float:
        return self.speeds.l1_rate * self.factors.l1_rate

    @property
    def l2_rate(self) -> float:
        return self.speeds.l2_rate * self.factors.l2_rate

    @property
    def l3_rate(self) -> float:
        return self.speeds.l3_rate * self.factors.l3_rate

    @property
    def memory_rate(self) -> float:
        return self.speeds.memory_rate_all * self.factors.memory_rate

    def issue(self, buffer: Buffer) -> float:
        """Vector operations a cycle on a buffer's elements."""
        return self.speeds.issue(buffer.dtype) * self.factors.issue

    def rate_of(self, size: Floats) -> Floats:
        """Bytes a cycle that one core draws where so many bytes were just written: from the first cache whose
        half holds them."""
        device = self.device
        return np.select(
            [size <= device.l1_bytes / 2, size <= device.l2_bytes / 2, size <= device.l3_bytes / 2],
            [self.l1_rate, self.l2_rate, self.l3_rate],
            self.memory_rate / device.cores,
        )


def balance_of(chunks: Floats, cores: int) -> Floats:
    """How much of the cores' time is used while `chunks` equal pieces of work are shared out."""
    rounds = np.ceil(chunks / cores)
    return np.asarray(chunks / (rounds * cores))
