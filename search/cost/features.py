"""The features of programs for the learned model: the quantities of the analytic estimate."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from search.cost.estimate import Estimate
from search.dag import Dag

# The number of nests that have features. They are the nests with the most work.
NESTS = 4
QUANTITIES = (
    "vector_width",
    "vector_waste",
    "accumulators",
    "loads_per_fma",
    "spills",
    "inner_reduction",
    "unrolled_steps",
    "cycles",
    "copy_cycles",
    "l2_traffic",
    "l3_traffic",
    "memory_traffic",
    "footprint_1",
    "footprint_2",
    "footprint_3",
    "footprint_4",
    "footprint_5",
    "trips_0",
    "trips_1",
    "trips_2",
    "trips_3",
    "trips_4",
    "trips_5",
    "chunks",
    "balance",
    "compute_s",
    "alone_s",
    "node_s",
    "epilogue_s",
    "epilogue_level",
    "unroll",
    *(f"nest_{rank}_{name}" for rank in range(NESTS) for name in ("s", "vector", "chunks", "depth")),
    "moved_s",
    "threads",
    "resident_blocks",
    "shared_bytes",
    "registers",
)
NUM_FEATURES = len(QUANTITIES) + 3
# Stored with every model. Increase the number if the meaning of a feature changes.
FEATURES_VERSION = f"5:{zlib.crc32(' '.join(QUANTITIES).encode()):08x}"


def extract(dag: Dag, estimate: Estimate) -> NDArray[np.float32]:
    """Return [programs, NUM_FEATURES]. Missing quantities are NaN, which trees treat as missing."""
    features = np.full((len(estimate.seconds), NUM_FEATURES), np.nan, np.float32)
    present = [column for column, name in enumerate(QUANTITIES) if name in estimate.quantities]
    if present:
        quantities = [estimate.quantities[QUANTITIES[column]] for column in present]
        features[:, present] = _scaled(np.array(quantities, dtype=np.float64)).T
    moved_bytes = float(sum(b.num_bytes for b in dag.buffers))
    widest = max((node.iterations for node in dag.nodes), default=1)
    features[:, len(QUANTITIES) :] = _scaled(np.array([dag.flops, moved_bytes, float(widest)]))
    return features


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logarithms of magnitudes. Small values are seconds, converted to nanoseconds to be above one."""
    scaled = np.where(np.abs(values) < 1e-1, values * 1e9, values)
    return np.asarray(np.sign(scaled) * np.log2(np.abs(scaled) + 1))
