"""The analytic estimates of GPU kernels that compute a whole attention."""

from __future__ import annotations

import numpy as np

from search.cost.cost_parameters import CostParameters, balance_of
from search.cost.gpu_analytic import GpuSpeeds, multiply_adds
from search.programs.attention_tile import TensorAttentionTile, attention_tile
from search.programs.nest import Floats
from search.programs.online_attention_tile import OnlineAttentionTile
from search.programs.program import Population
from search.sketches.attention import attention_of
from search.sketches.stage import Stage

# The operations of one score in a softmax: two exponentials, a maximum, a sum and a division.
SOFTMAX_STEPS = 40
# The same with an online softmax in registers: a scale, a mask, a maximum, an exponential and a rounding.
# Four lanes exchange the maximum of each row and step, and compute another exponential.
ONLINE_STEPS, ROW_STEPS = 12, 24
# A multiprocessor with fewer warps computes a softmax more slowly.
WARPS = 4


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


def tensor_attention_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the seconds of a kernel on tensor cores: of its products, estimated like kernels of their own
    (`tensor_seconds` in `gpu_analytic`), and of the softmax between them.
    """
    gpu, speeds = parameters.device.gpu, GpuSpeeds.of(parameters)
    assert gpu is not None, "estimates of GPU programs are for GPUs"
    tile = TensorAttentionTile.of(population, stage)
    sizes, dag = tile.sizes, population.sketch.dag
    found = attention_of(dag, dag.node[stage.node])
    assert found is not None, "the stage computes an attention"
    blocks = tile.blocks.astype(np.float64)
    fitting = np.minimum(
        gpu.resident_shared_bytes // tile.shared_bytes, gpu.resident_threads // (tile.warps * gpu.warp_size)
    )
    resident = np.minimum(np.clip(fitting, 1, gpu.resident_blocks), np.ceil(blocks / parameters.cores))
    issue = np.minimum(resident * tile.warps / parameters.factors.tensor_warps, 1.0)
    operand = dag.buffer[found.scores.reads[tile.of_scores.first].buffer]
    tensor_lanes = multiply_adds(parameters, operand, "tensor")
    lanes = multiply_adds(parameters, dag.buffer[found.scores.write.buffer])
    steps = tile.queries * sizes.keys * (tile.depth + tile.columns)
    moved = sizes.keys * (tile.depth + tile.columns) * sizes.operand_bytes
    fetches = np.ceil(sizes.keys / tile.keys) + np.ceil(sizes.keys / tile.weighted)
    every = np.stack(
        [
            steps / tensor_lanes / issue,
            moved / speeds.l2_bytes,
            fetches * speeds.load_cycles / resident / tile.chosen("stages"),
        ]
    )
    longest, overlap = every.max(axis=0), parameters.factors.gpu_overlap
    active = np.minimum(resident * tile.warps / WARPS, 1.0)
    softmax = SOFTMAX_STEPS * tile.queries * sizes.keys / lanes / active
    of_block = longest + overlap * (every.sum(axis=0) - longest) / len(every) + softmax
    busy = balance_of(blocks / resident, parameters.cores)
    return np.asarray(blocks * of_block / parameters.cores / busy / speeds.hertz + speeds.launch_s)


def online_attention_seconds(population: Population, stage: Stage, parameters: CostParameters) -> Floats:
    """Return the seconds of a kernel with an online softmax: of its products and fetches, estimated like
    `tensor_attention_seconds`, and of the softmax in registers between the two products of a step. Without
    tensor cores, products take as long as their multiply-adds or their loads from shared memory.
    """
    gpu, speeds = parameters.device.gpu, GpuSpeeds.of(parameters)
    assert gpu is not None, "estimates of GPU programs are for GPUs"
    tile = OnlineAttentionTile.of(population, stage)
    sizes, dag = tile.sizes, population.sketch.dag
    found = attention_of(dag, dag.node[stage.node])
    assert found is not None, "the stage computes an attention"
    blocks, threads = tile.blocks.astype(np.float64), tile.warps * gpu.warp_size
    fitting = np.minimum.reduce(
        [
            gpu.resident_shared_bytes // tile.shared_bytes,
            gpu.resident_threads // threads,
            gpu.registers // (threads * tile.registers),
        ]
    )
    resident = np.minimum(np.clip(fitting, 1, gpu.resident_blocks), np.ceil(blocks / parameters.cores))
    lanes = multiply_adds(parameters, dag.buffer[found.scores.write.buffer])
    active = np.minimum(resident * tile.warps / WARPS, 1.0)
    steps = np.ceil(sizes.keys / tile.keys)
    keys = steps * tile.keys
    multiplied = tile.queries * keys * (tile.depth + tile.columns)
    if tile.is_on_tensor_cores:
        issue = np.minimum(resident * tile.warps / parameters.factors.tensor_warps, 1.0)
        operand = dag.buffer[found.scores.reads[tile.of_scores.first].buffer]
        products = multiplied / multiply_adds(parameters, operand, "tensor") / issue
    else:
        loaded = steps * threads * tile.loaded_values / gpu.warp_size
        products = np.maximum(multiplied / lanes / active, loaded)
    every = np.stack(
        [
            products,
            keys * (tile.depth + tile.columns) * sizes.operand_bytes / speeds.l2_bytes,
            steps * speeds.load_cycles / resident / tile.chosen("stages"),
        ]
    )
    longest, overlap = every.max(axis=0), parameters.factors.gpu_overlap
    # Each part of the keys has maxima and sums of its own, which are added up at the end.
    row_steps = tile.parts * steps + tile.parts - 1
    softmax = tile.queries * (ONLINE_STEPS * keys + row_steps * (tile.columns + ROW_STEPS)) / lanes / active
    of_block = longest + overlap * (every.sum(axis=0) - longest) / len(every) + softmax
    busy = balance_of(blocks / resident, parameters.cores)
    return np.asarray(blocks * of_block / parameters.cores / busy / speeds.hertz + speeds.launch_s)
