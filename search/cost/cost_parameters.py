"""Parameters of the analytic cost model: measured speeds, and the fraction of them that programs reach."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from core.device import Device
from core.instruction_sets import X86_ARCHS
from core.profile import Profile
from search.dag import Buffer
from search.programs.nest import Floats
from search.sketches.factors import Ints

LINE_BYTES = 64
PAGE_BYTES = 4096
# Instructions that Arm cores decode per cycle, by LLVM's name of the core, and of others.
DISPATCH = {"cortex-a53": 2.0, "cortex-a55": 2.0, "cortex-a57": 3.0, "cortex-a72": 3.0}
ARM_DISPATCH = 4.0


@dataclass(frozen=True)
class ShapeFactors:
    """The fraction of a core's speeds that loops reach, and the costs of loop shapes, for all processors.

    `python -m benchmarks.fit` fits them to measured programs of several device classes. Speeds are relative
    to the measured profile (`core.profile`), `..._share` to a cache's size; `..._cycles` are cycles of a
    core.
    """

    # Speeds, relative to the profile's.
    issue: float = 1.0
    latency: float = 1.0
    loads: float = 1.0
    l1_rate: float = 1.0
    l2_rate: float = 1.0
    l3_rate: float = 1.2
    memory_rate: float = 0.45
    launch: float = 3.75
    gather: float = 3.5
    # The fraction of each cache that a tile can use.
    l1_share: float = 0.93
    l2_share: float = 0.49
    l3_share: float = 0.44
    branch_cycles: float = 4.8
    # A load of an inlined value, such as an element of a padded operand.
    inline_cycles: float = 1.0
    # A partial result that is added to a sum.
    row_cycles: float = 2.8
    # An iteration of a loop around a register tile, without its body.
    loop_cycles: float = 0.041
    # A jump to another row, in bytes that could be streamed in that time.
    stall_bytes: float = 120.0
    # The cycles of an accumulator in memory, and the number of missing registers at which all accumulators
    # are in memory.
    spill_cycles: float = 1.0
    spill_all: float = 6.25
    # A copied vector: it is loaded, stored, and loaded again.
    copy_cycles: float = 1.6
    # Instructions in a core's reorder buffer.
    window: float = 225.0
    # The fraction of the shorter overlapping times that is added to the longest.
    overlap: float = 0.3
    # The same fraction for GPUs, and the number of warps that keep a multiprocessor's tensor cores busy.
    gpu_overlap: float = 0.76
    tensor_warps: float = 8.0
    # The time of one GPU thread, fitted to programs of three networks on an H200. Cycles of a multiply-add
    # and of a shared-memory load in an unrolled step; an iteration of a loop that isn't unrolled, in
    # arithmetic latencies, because the next iteration needs its results; the number of unrolled steps that
    # hide that latency; cycles of a multiply-add whose sum is in local memory.
    gpu_step_cycles: float = 1.0
    gpu_load_cycles: float = 1.0
    gpu_loop_latencies: float = 1.0
    gpu_unrolled_steps: float = 16.0
    gpu_local_cycles: float = 2.5
    # In latencies of a load from memory: a block's wait for a tile, a thread's load, and an iteration of a
    # loop that isn't unrolled, whose loads wait for the previous ones.
    gpu_fetch_wait: float = 4.1
    gpu_unrolled_load: float = 0.043
    gpu_serial_load: float = 0.49
    # The most bytes per cycle that a multiprocessor reads from the L2 cache.
    gpu_cache_bytes: float = 64.0


FITTED = ShapeFactors()


@dataclass(frozen=True)
class CostParameters:
    """A device, and the speeds that loops reach on it.

    Rates are in bytes per cycle of one core; `memory_rate` is the rate of all cores together.
    """

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
        """Vector loads per cycle."""
        return self.speeds.loads * self.factors.loads

    @property
    def dispatch(self) -> float:
        """Instructions per cycle. If instructions fold loads, other rates limit a core first."""
        return math.inf if self.folds_loads else DISPATCH.get(self.device.mcpu, ARM_DISPATCH)

    @property
    def folds_loads(self) -> bool:
        """Whether one instruction loads an operand and computes with it."""
        return self.device.arch in X86_ARCHS

    @property
    def gather_cycles(self) -> float:
        return self.speeds.gather_cycles * self.factors.gather

    @property
    def launch_s(self) -> float:
        return self.speeds.launch_s * self.factors.launch

    @property
    def l1_room(self) -> float:
        """Bytes of the L1 cache that a tile can use."""
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
        """Return the vector operations per cycle on a buffer's elements."""
        return self.issue_of(buffer.dtype)

    def issue_of(self, rate: str) -> float:
        """Return the vector operations per cycle by the name of a rate in the profile."""
        return self.speeds.issue(rate) * self.factors.issue

    def rate_of(self, size: Floats) -> Floats:
        """Return the rate at which one core reads `size` bytes that were just written.

        The data is in the smallest cache that is at least twice as large.
        """
        device = self.device
        rates = np.array([self.l1_rate, self.l2_rate, self.l3_rate, self.memory_rate / device.cores])
        limits = np.maximum.accumulate([device.l1_bytes, device.l2_bytes, device.l3_bytes]) / 2
        return np.asarray(rates[np.searchsorted(limits, size)])


def balance_of(chunks: Floats | Ints, cores: int) -> Floats:
    """Return the fraction of the cores' time that is used if they compute `chunks` equal pieces of work."""
    rounds = np.ceil(chunks / cores)
    return np.asarray(chunks / (rounds * cores))
