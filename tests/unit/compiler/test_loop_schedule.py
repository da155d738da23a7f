"""Traces are written without TVM's schedule where their loops are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import te
from tvm.ir import save_json
from tvm.tirx import IndexMap

from compiler.lowering.cpu.loop_schedule import UnknownLoops, covers
from compiler.lowering.cpu.packed_index import index_map_text
from compiler.lowering.program import inlined_nodes
from compiler.lowering.trace import lower, record_loops
from compiler.reading.subgraph import read_dag
from compiler.variants.winograd import convolution
from search.programs.annotate import sample
from search.rules.space import generate
from tests.devices import DEVICE
from tests.workloads import WORKLOADS, module


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "place",
    [
        lambda i, j: [i, j],
        lambda i, j: [j // 16, i // 8, j % 16, i % 8],
        lambda i, j: [j // 16 % 4, i, j % 16, j // 64],
        lambda i, j: [i],
    ],
)
def test_an_index_map_is_what_tvm_writes(place: Callable[..., Any], dtype: str) -> None:
    def spread(*indices: Any) -> Any:
        return place(*indices)

    assert index_map_text(spread, 2, dtype) == save_json(
        IndexMap.from_func(spread, ndim=2, index_dtype=dtype)
    )


@pytest.mark.parametrize("name", ["conv2d", "depthwise", "matmul", "max_pool", "add_relu", "winograd"])
def test_the_loops_of_most_programs_are_known(name: str) -> None:
    module = WORKLOADS[name]()
    rng = np.random.default_rng(0)
    known = []
    for sketch in generate(read_dag(module), DEVICE):
        population = sample(sketch, 64, rng)
        for row in range(min(len(population), 4)):
            program = population.program(row)
            try:
                known.append(
                    covers(program) and bool(record_loops(module, inlined_nodes(program), program, DEVICE))
                )
            except UnknownLoops:
                known.append(False)
    assert np.mean(known) > 0.5


@pytest.mark.parametrize(
    ("tile", "data", "outputs"),
    [
        (4, (1, 16, 16, 16), 16),
        (2, (2, 8, 10, 5), 20),  # two images are blocks already
        (2, (1, 14, 6, 8), 32),  # blocks of channels as well
    ],
)
def test_the_trace_of_a_convolution_in_blocks_is_what_tvm_writes(
    tile: int, data: tuple[int, ...], outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nests read remainders of an axis, several places at once, and loops that were fused."""
    x = te.placeholder(data, name="x")
    weight = te.placeholder((tile + 2, tile + 2, data[-1], outputs), name="weight")
    result = convolution(x, weight, (1, 1, 1, 1), tile)
    workload = module([x, weight, te.compute(result.shape, lambda *at: result(*at) + 1.0, name="result")])
    rng = np.random.default_rng(0)
    programs = []
    for sketch in generate(read_dag(workload), DEVICE):
        if any(stage.blocks for stage in sketch.stages):
            population = sample(sketch, 32, rng)
            programs += [population.program(row) for row in range(min(len(population), 2))]
    recorded = [record_loops(workload, inlined_nodes(program), program, DEVICE) for program in programs]
    assert recorded
    monkeypatch.setattr("compiler.lowering.trace.covers", lambda program: False)
    assert recorded == [lower(workload, program, DEVICE) for program in programs]
