"""What the analytic estimates assume of every CPU: calibrated once on measured programs."""

from __future__ import annotations

import numpy as np

from search.device import Device
from search.nest import Floats

CYCLES_PER_S = 3.0e9
VECTOR_REGISTERS = 32
FMA_LATENCY = 4
ISSUE_WIDTH = 2
LINE_BYTES = 64
# Bytes a cycle that one core draws from each level; memory is shared by the cores.
L1_BYTES, L2_BYTES, L3_BYTES, MEMORY_BYTES = 128.0, 40.0, 16.0, 10.0
# How much of each cache a tile can count on.
L1_SHARE, L2_SHARE, L3_SHARE = 0.8, 0.7, 0.6
PARALLEL_LAUNCH_S = 3e-6
BRANCH_CYCLES = 4.0
OVERLAP = 0.5
# What a jump to another row costs, in bytes that would have streamed in meanwhile.
MEMORY_STALL_BYTES = 256.0
# An accumulator that lives in memory, and how many too many it takes until all of them do.
SPILL_CYCLES, SPILL_ALL = 1.5, 8
LOADS_PER_CYCLE = 1.25
# A vector that is copied: loaded, stored, and loaded again.
COPY_CYCLES = 2.0
# A lane that is gathered from, or scattered to, a row of its own.
GATHER_CYCLES = 2.0
REORDER_WINDOW = 512


def balance_of(chunks: Floats, cores: int) -> Floats:
    """How much of the cores' time is used while `chunks` equal pieces of work are shared out."""
    rounds = np.ceil(chunks / cores)
    return np.asarray(chunks / (rounds * cores))


def rate_of(size: Floats, device: Device) -> Floats:
    """Bytes a cycle that one core draws where so many bytes were just written: from the first cache whose
    half holds them."""
    return np.select(
        [size <= device.l1_bytes / 2, size <= device.l2_bytes / 2, size <= device.l3_bytes / 2],
        [L1_BYTES, L2_BYTES, L3_BYTES],
        MEMORY_BYTES / device.cores,
    )
