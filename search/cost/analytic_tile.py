"""The analytic estimate of a tiled node: a roofline over registers, caches and cores.

search.cost.tile_registers has the costs of its steps, search.cost.tile_traffic the costs of their data
movement. The node takes the longest of the times of computing and of the transfers between memory levels, and
a fraction of the others. The parallel chunks are distributed over the cores.
"""

from __future__ import annotations

import numpy as np

from search.cost.cost_parameters import LINE_BYTES, CostParameters, balance_of
from search.cost.tile_registers import register_terms
from search.cost.tile_traffic import copy_cycles, traffic_terms
from search.dag import Dag
from search.programs.nest import Floats, Nest, footprint_bytes
from search.programs.program import Population
from search.sketches.stage import Stage


def tile_terms(population: Population, stage: Stage, parameters: CostParameters) -> dict[str, Floats]:
    """Return the quantities of one tiled node, each [programs]; `node_s` and `epilogue_s` are its seconds."""
    nest = Nest.of(population, stage)
    dag = population.sketch.dag
    chunks = nest.chunks.astype(np.float64)
    balance = balance_of(chunks, parameters.cores)
    terms = register_terms(population, nest, parameters)
    traffic = traffic_terms(population, nest, parameters)
    copies = copy_cycles(population, nest, parameters)
    compute_s = (terms["cycles"] + copies) / parameters.hertz / parameters.cores / balance
    memory_s = [
        traffic[name] / rate / parameters.hertz / share / balance
        for name, rate, share in (
            ("l2_traffic", parameters.l2_rate, parameters.cores),
            ("l3_traffic", parameters.l3_rate, parameters.cores),
            ("memory_traffic", parameters.memory_rate, 1),
        )
    ]
    every = [compute_s, *memory_s]
    longest = np.maximum.reduce(every)
    # A single chunk needs no parallel loop. In a blocked chain, the last nest has the parallel loop.
    launch_s = np.where((chunks > 1) & (not stage.blocks), parameters.launch_s, 0.0)
    node_s = longest + parameters.factors.overlap * (np.sum(every, axis=0) - longest) + launch_s
    return {
        **terms,
        **traffic,
        **{f"trips_{level}": nest.trips(level).astype(np.float64) for level in range(nest.depth)},
        "copy_cycles": copies,
        "chunks": chunks,
        "balance": balance,
        "compute_s": compute_s,
        "node_s": node_s,
        "epilogue_s": _epilogue_seconds(nest, dag, parameters),
        "epilogue_level": np.full(len(chunks), float(stage.epilogue_level)),
        "unroll": population.column(stage.node, "unroll").astype(np.float64),
    }


def _epilogue_seconds(nest: Nest, dag: Dag, parameters: CostParameters) -> Floats:
    """Return the seconds of writing the result and rereading it from the cache that holds a tile."""
    buffer = dag.buffer[nest.node.write.buffer]
    level = nest.stage.epilogue_level
    tile = footprint_bytes(nest.node.write, nest.inside[level], buffer, LINE_BYTES)
    rate = parameters.rate_of(tile / nest.chunks if nest.stage.blocks else tile)
    return np.asarray(2 * buffer.num_bytes / rate / parameters.hertz / parameters.cores)
