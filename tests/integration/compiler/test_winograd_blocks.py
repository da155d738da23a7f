"""Winograd's convolutions in blocks of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from tvm import te, topi

from compiler.lowering.trace import lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.integer_winograd import INTEGERS, TILE
from compiler.variants.winograd import convolution
from compiler.workload import to_json
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from search.sketches.winograd_blocks import winograd_blocks
from tests.marks import slow_lane_except
from tests.packing import with_constants
from tests.workloads import module

DEVICE = replace(detect_device(2), profile=None)
BUILDER, RUNNER = LocalBuilder(DEVICE.target), LocalRunner(DEVICE.target)
WEIGHTS = 1
HASWELL = replace(DEVICE, features=("avx", "avx2", "fma"), vector_bytes=32)


def _blocks(sketch: Sketch) -> list[tuple[int, int]]:
    """Return the numbers of blocks of rows and of channels."""
    return [(stage.blocks, stage.channel_blocks) for stage in sketch.of_kind(StageKind.BLOCKS)]


class Case(NamedTuple):
    """A convolution in tiles of this size, and the numbers of blocks that are tried."""

    tile: int
    data: tuple[int, ...]
    outputs: int
    blocks: list[tuple[int, int]]


CASES = [
    Case(4, (1, 16, 16, 16), 16, [(2, 1), (4, 1)]),
    Case(2, (2, 8, 10, 5), 20, [(1, 1), (2, 1), (4, 1)]),  # two images are two blocks already
    Case(4, (1, 3, 8, 12, 6), 16, [(2, 1)]),  # with a depth, which isn't cut
    Case(2, (1, 14, 6, 8), 32, [(7, 1), (7, 2)]),  # two cores can't share seven rows evenly
    Case(4, (1, 10, 12, 8), 8, [(3, 1)]),  # the last rows of tiles reach beyond the image: columns are cut
    Case(4, (1, 10, 10, 8), 8, []),  # and so do the last columns
]


@pytest.mark.parametrize("case", slow_lane_except(CASES, CASES[1], *CASES[4:]), ids=str)
def test_row_blocks_agree_with_the_convolution(case: Case) -> None:
    """A bias, a residual of the result's shape and an activation follow the convolution."""
    tile, data, outputs, expected = case
    edge, depth = tile + 2, (3,) * (len(data) - 4)
    x = te.placeholder(data, name="x")
    weight = te.placeholder((edge, edge, *depth, data[-1], outputs), name="weight")
    product = convolution(x, weight, (1,) * (2 * len(data) - 4), tile)
    bias = te.placeholder((outputs,), name="bias")
    residual = te.placeholder(product.shape, name="residual")
    result = topi.nn.relu(topi.add(topi.add(product, bias), residual))
    workload = with_constants(module([x, weight, bias, residual, result]), [WEIGHTS])
    rng = np.random.default_rng(0)
    found = [sketch for sketch in generate(read_dag(workload), DEVICE) if _blocks(sketch)]
    assert [blocks for sketch in found for blocks in _blocks(sketch)] == expected
    for sketch in found:
        population = sample(sketch, 64, rng)
        program = population.program(int(rng.integers(len(population))))
        built = BUILDER.build(to_json(workload), lower(workload, program, DEVICE))
        assert isinstance(built, BuiltKernel), f"{program}\n{built.error}"
        measured = RUNNER.run(built, to_json(workload), (), best_s=1e-12)
        assert not measured.error, f"{program}\n{measured.error}"


@pytest.mark.skipif("avx2" not in DEVICE.features, reason="this CPU has no AVX2")
def test_blocks_of_integers_are_dot_products_and_inline_a_residual_of_bytes() -> None:
    x = te.placeholder((1, 8, 8, 16), "uint8", "x")
    weight = te.placeholder((4, 4, 16, 32), "int16", "weight")
    product = convolution(x, weight, (1, 1, 1, 1), TILE, INTEGERS)
    residual = te.placeholder(product.shape, "uint8", "residual")
    dequantized = topi.multiply(topi.cast(residual, "float32"), 0.5)
    result = topi.nn.relu(topi.add(topi.cast(product, "float32"), dequantized))
    workload = with_constants(module([x, weight, residual, result]), [WEIGHTS])
    rng = np.random.default_rng(0)
    found = [sketch for sketch in generate(read_dag(workload), HASWELL) if _blocks(sketch)]
    assert [blocks for sketch in found for blocks in _blocks(sketch)] == [(2, 1), (4, 1)]
    for sketch in found:
        assert [stage.intrinsic for stage in sketch.stages if stage.intrinsic] == ["dot_8x2_int16_pmaddwd"]
        program = sample(sketch, 64, rng).program(0)
        built = BUILDER.build(to_json(workload), lower(workload, program, HASWELL))
        assert isinstance(built, BuiltKernel), f"{program}\n{built.error}"
        measured = RUNNER.run(built, to_json(workload), (), best_s=1e-12)
        assert not measured.error, f"{program}\n{measured.error}"


def test_a_result_with_another_reader_is_not_computed_in_blocks() -> None:
    x = te.placeholder((1, 16, 16, 16), name="x")
    weight = te.placeholder((6, 6, 16, 16), name="weight")
    product = convolution(x, weight, (1, 1, 1, 1), 4)
    workload = module([x, weight, product, topi.nn.relu(product)])
    dag = read_dag(workload)
    assert all(winograd_blocks(dag, node, 2) is None for node in dag.nodes if node is not dag.nodes[-2])
