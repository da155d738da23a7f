"""Sampled programs keep a GPU's limits, recounted with plain integers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.device import Gpu
from search.dag import AxisKind
from search.evolution.mutate import mutate
from search.programs.annotate import keep_valid, sample
from search.programs.program import Program, gather
from search.programs.validity import valid
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage, StageKind
from tests.devices import GPU
from tests.unit.search import dags

SKETCHES = [sketch for make in dags.DAGS.values() for sketch in generate(make(), GPU)]
LIMITS = Gpu()

sketches = st.sampled_from(SKETCHES)
seeds = st.integers(0, 2**32 - 1)


def product_of(program: Program, stage: Stage, *levels: int) -> int:
    """Return the iterations of a tile's spatial levels together."""
    node = program.sketch.dag.node[stage.node]
    return math.prod(program.factors(node.name, axis)[level] for axis in node.spatial for level in levels)


def shared_bytes(program: Program, stage: Stage) -> int:
    """Return the bytes of operands whose indices are sums of axes with whole coefficients."""
    dag = program.sketch.dag
    node = dag.node[stage.node]
    inside = []
    for axis, facts in enumerate(node.axes):
        factors = program.factors(node.name, axis)
        inside.append(math.prod(factors[1:]))
        assert facts.kind is AxisKind.SPATIAL or len(factors) == 3
    total = 0
    for read in node.reads:
        shape = dag.buffer[read.buffer].shape
        extents = [
            1 + sum(term.coefficient * (inside[term.axis] - 1) for term in i.terms) for i in read.indices
        ]
        elements = math.prod(min(extent, size) for extent, size in zip(extents, shape, strict=True))
        total += elements * dag.buffer[read.buffer].item_bytes
    return total


@given(sketches, seeds)
def test_sampled_programs_are_within_the_limits(sketch: Sketch, seed: int) -> None:
    population = sample(sketch, 16, np.random.default_rng(seed))
    for row in range(len(population)):
        program = population.program(row)
        for stage in sketch.tiled:
            node = sketch.dag.node[stage.node]
            results = math.prod(node.axes[axis].extent for axis in node.spatial)
            threads = product_of(program, stage, 2)
            assert min(LIMITS.warp_size, results) <= threads <= LIMITS.max_threads
            assert product_of(program, stage, 1) <= 8
            assert threads * product_of(program, stage, 1, 3, 4) <= LIMITS.registers
            if all(term.divisor == 1 for read in node.reads for i in read.indices for term in i.terms):
                assert shared_bytes(program, stage) <= LIMITS.shared_bytes
        for stage in sketch.of_kind(StageKind.ROWS):
            sizes = [program.choice(stage.node, kind) for kind in ("threads", "rows")]
            assert math.prod(map(int, sizes)) <= LIMITS.max_threads


@given(sketches, seeds)
def test_legal_mutants_are_valid(sketch: Sketch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    population = sample(sketch, 16, rng)
    if len(population) and sketch.num_columns:
        assert valid(keep_valid(mutate(population, rng))).all()


@pytest.mark.parametrize("shape", [(128, 128, 128), (1024, 1024, 1024), (512, 32, 512), (49, 1000, 384)])
def test_at_least_one_in_twenty_drawn_programs_is_valid(shape: tuple[int, int, int]) -> None:
    (sketch,) = generate(dags.matmul(*shape), GPU)
    assert len(sample(sketch, 400, np.random.default_rng(0))) >= 20


def tiled(threads: int, shared: int = 1) -> Program:
    (sketch,) = generate(dags.matmul(2048, 2048, 2048), GPU)
    values = [2048 // threads, 1, threads, 1, 1, 2048, 1, 1, 1, 1, 2048 // shared, shared, 1]
    return Program(sketch, (*values, *[0] * (sketch.num_columns - len(values))))


@pytest.mark.parametrize(("threads", "fits"), [(16, False), (32, True), (1024, True), (2048, False)])
def test_a_block_has_between_a_warp_and_the_most_threads(threads: int, fits: bool) -> None:
    assert valid(gather([tiled(threads)])).tolist() == [fits]


@pytest.mark.parametrize(("columns", "fits"), [(64, True), (512, False)])
def test_fetches_fit_into_shared_memory(columns: int, fits: bool) -> None:
    # 32 rows of a and one column of b.
    assert valid(gather([tiled(32, columns)])).tolist() == [fits]


def test_the_devices_own_limits_count() -> None:
    small = replace(GPU, gpu=Gpu(max_threads=256))
    (sketch,) = generate(dags.matmul(2048, 2048, 2048), small)
    assert valid(gather([Program(sketch, tiled(512).values)])).tolist() == [False]


def test_fetches_of_quotients_keep_their_shape() -> None:
    """Tiles that straddle multiples of 2 in y // 2 would fetch different numbers of rows."""
    sketch = generate(dags.DAGS["transposed"](), GPU)[-1]
    population = sample(sketch, 256, np.random.default_rng(0))
    (stage,) = sketch.tiled
    node = sketch.dag.node[stage.node]
    halved = {t.axis for read in node.reads for i in read.indices for t in i.terms if t.divisor == 2}
    assert halved
    for axis in halved:
        factors = population.factors(node.name, axis)
        whole = factors[:, 0] == 1
        assert (whole | (factors[:, 1:].prod(axis=1) % 2 == 0)).all()
