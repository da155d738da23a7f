"""The analytic estimate of a GPU kernel that computes a whole attention."""

from __future__ import annotations

import numpy as np

from search.cost.cost_parameters import CostParameters, balance_of
from search.cost.gpu_analytic import GpuSpeeds, multiply_adds
from search.programs.attention_tile import attention_tile
from search.programs.nest import Floats
from search.programs.program import Population
from search.sketches.attention import attention_of
from search.sketches.stage import Stage

# The operations of one score in a softmax: two exponentials, a maximum, a sum and a division.
SOFTMAX_STEPS = 40


def attention_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the seconds of a kernel: the longest of its arithmetic, one thread's serial steps and its
    traffic with the cache.

    A step of a thread multiplies `queries` rows with `keys` scores or some columns of values.
    """
    gpu, speeds = parameters.device.gpu, GpuSpeeds.of(parameters)
    assert gpu is not None, "estimates of GPU programs are for GPUs"
    tile = attention_tile(population.sketch, stage)
    warps, queries, keys = (
        population.chosen(stage.node, kind).astype(np.float64) for kind in ("warps", "queries", "keys")
    )
    rows = warps * queries
    blocks = tile.images * np.ceil(tile.queries / rows)
    fitting = np.minimum(
        gpu.resident_shared_bytes // tile.shared_bytes(rows), gpu.resident_threads // (warps * gpu.warp_size)
    )
    resident = np.clip(fitting, 1, gpu.resident_blocks)
    resident = np.minimum(resident, np.ceil(blocks / parameters.cores))
    columns = np.ceil(tile.width / gpu.warp_size)
    # A thread's multiply-adds and loads, in each of the two products.
    score_steps = np.ceil(tile.keys / (gpu.warp_size * keys)) * tile.depth
    multiplied = score_steps * queries * keys + tile.keys * queries * columns
    loaded = score_steps * (queries + keys) + tile.keys * (queries + columns)
    softmax = SOFTMAX_STEPS * queries * np.ceil(tile.keys / gpu.warp_size)
    of_thread = multiplied + loaded + softmax
    dag = population.sketch.dag
    attention = attention_of(dag, dag.node[stage.node])
    assert attention is not None, "the stage computes an attention"
    lanes = multiply_adds(parameters, dag.buffer[attention.scores.write.buffer])
    moved = blocks * tile.keys * (tile.depth + tile.width) * tile.operand_bytes
    waves = np.ceil(blocks / (resident * parameters.cores))
    cycles = np.stack(
        [
            waves * resident * warps * gpu.warp_size * of_thread / lanes,
            waves * (of_thread + (score_steps + tile.keys) * parameters.speeds.latency_cycles),
            moved / speeds.l2_bytes / parameters.cores / balance_of(blocks / resident, parameters.cores),
        ]
    )
    return np.asarray(cycles.max(axis=0) / speeds.hertz + speeds.launch_s)
