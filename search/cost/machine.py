"""What the analytic estimates assume of every CPU: calibrated once on measured programs."""

from __future__ import annotations

import numpy as np

from search.device import Device
from search.programs.nest import Floats

CYCLES_PER_S = 4.0e9
VECTOR_REGISTERS = 32
FMA_LATENCY = 3
ISSUE_WIDTH = 2
LINE_BYTES = 64
# Bytes a cycle that one core draws from each level; memory is shared by the cores.
L1_BYTES, L2_BYTES, L3_BYTES, MEMORY_BYTES = 70.0, 36.0, 41.0, 6.0
# How much of each cache a tile can count on.
L1_SHARE, L2_SHARE, L3_SHARE = 0.93, 0.61, 0.44
PARALLEL_LAUNCH_S = 4e-6
BRANCH_CYCLES = 1.9
# A load whose value is computed on the spot, such as one of a padded operand.
INLINE_CYCLES = 0.96
# A partial result that is added to a sum.
ROW_CYCLES = 2.2
# What a loop around a register tile costs by itself.
LOOP_CYCLES = 0.033
OVERLAP = 0.24
# What a jump to another row costs, in bytes that would have streamed in meanwhile.
MEMORY_STALL_BYTES = 70.0
# An accumulator that lives in memory, and how many too many it takes until all of them do.
SPILL_CYCLES, SPILL_ALL = 0.5, 10.0
LOADS_PER_CYCLE = 1.25
# A vector that is copied: loaded, stored, and loaded again.
COPY_CYCLES = 1.6
# A lane that is gathered from, or scattered to, a row of its own.
GATHER_CYCLES = 1.4
REORDER_WINDOW = 146


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
