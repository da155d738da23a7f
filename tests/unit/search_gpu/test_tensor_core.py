from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.device import Gpu
from core.profile import assumed_gpu_profile
from search.cost.analytic import estimate
from search.dag import Dag
from search.programs.annotate import sample
from search.programs.tensor_tile import TensorTile
from search.rules.space import generate
from search.sketches.predicates import needs_tiling
from search.sketches.stage import StageKind
from search.sketches.tensor_core import match_product
from tests.devices import GPU
from tests.unit.search import dags


def typed(graph: Dag, operand: str = "float16", sums: str = "float32") -> Dag:
    """Return the graph with inputs of one type and sums of another."""
    inputs = {read.buffer for node in graph.nodes if needs_tiling(node) for read in node.reads}
    buffers = [replace(b, dtype=operand if b.name in inputs else sums) for b in graph.buffers]
    return replace(graph, buffers=tuple(buffers))


def in_tf32(graph: Dag) -> Dag:
    """Return the graph with products of values that are rounded to TF32."""
    nodes = (replace(node, rounds_to="tf32") if needs_tiling(node) else node for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def parts(graph: Dag, name: str) -> str | None:
    found = match_product(graph, graph.node[name], Gpu())
    return found.parts if found else None


def test_axes_fall_into_the_parts_of_a_matrix_product() -> None:
    assert parts(typed(dags.matmul()), "matmul") == "ijk"
    assert parts(typed(dags.conv2d()), "conv") == "iiijkkk"


@pytest.mark.parametrize(
    ("operand", "sums", "capability", "has"),
    [
        ("float16", "float32", 70, True),
        ("float16", "float16", 70, True),
        ("bfloat16", "float32", 80, True),
        ("bfloat16", "float32", 75, False),
        ("int8", "int32", 75, True),
        ("int8", "int32", 72, False),
        ("float16", "float32", 61, False),
        ("float32", "float32", 90, False),
    ],
)
def test_types_need_a_compute_capability(operand: str, sums: str, capability: int, has: bool) -> None:
    graph = typed(dags.matmul(), operand, sums)
    assert (match_product(graph, graph.node["matmul"], Gpu(capability=capability)) is not None) is has


@pytest.mark.parametrize(("capability", "has"), [(75, False), (80, True), (87, True)])
def test_values_rounded_to_tf32_need_a_compute_capability(capability: int, has: bool) -> None:
    graph = in_tf32(dags.matmul())
    assert (match_product(graph, graph.node["matmul"], Gpu(capability=capability)) is not None) is has


def test_other_cores_compute_no_product_in_tf32() -> None:
    keys = [sketch.key for sketch in generate(in_tf32(dags.conv2d()), GPU)]
    assert keys == ["inline pad; tensor cores conv, relu; inline add; fuse relu"]


def test_tiles_in_tf32_are_half_as_deep_and_may_be_larger_than_the_result() -> None:
    sketch = generate(in_tf32(dags.matmul(1000, 1000, 1000)), GPU)[0]
    (stage,) = sketch.of_kind(StageKind.TENSOR)
    population = sample(sketch, 256, np.random.default_rng(0))
    tile = TensorTile.of(population, stage)
    assert set(tile.tile("k").tolist()) == {8, 16, 32}
    assert (tile.shared_bytes <= Gpu().dynamic_shared_bytes).all()
    # Operands and results are of one type, so TVM may put the results in an operand's place.
    assert (tile.result_bytes <= np.maximum(*tile.operand_bytes) * tile.stages).any()
    assert (estimate(population, GPU).seconds > 0).all()


def test_the_estimate_knows_how_fast_tensor_cores_multiply_in_tf32() -> None:
    population = sample(
        generate(in_tf32(dags.matmul(4096, 4096, 4096)), GPU)[0], 64, np.random.default_rng(0)
    )
    profile = assumed_gpu_profile(GPU.cores)
    rates = dict(profile.multiply_adds)
    slow, fast = (
        replace(GPU, profile=replace(profile, multiply_adds={**rates, "tensorfloat32": rate}))
        for rate in (1.0, 64.0)
    )
    assert (estimate(population, slow).seconds > 2 * estimate(population, fast).seconds).all()


def test_small_parts_would_be_padding() -> None:
    assert parts(typed(dags.matmul(8, 64, 64)), "matmul") is None


def test_a_depthwise_convolution_is_no_matrix_product() -> None:
    assert parts(typed(dags.depthwise()), "depthwise") is None


def test_tensor_cores_are_one_sketch_more() -> None:
    keys = [sketch.key for sketch in generate(typed(dags.conv2d()), GPU)]
    assert keys == [
        "inline pad; tensor cores conv, relu; inline add; fuse relu",
        "inline pad; tile conv SSSRRSRS, relu at 3, shared pad weight; inline add; fuse relu",
    ]


@pytest.mark.parametrize("size", [16, 64, 1000])
def test_drawn_tiles_are_within_the_limits(size: int) -> None:
    sketch = generate(typed(dags.matmul(size, size, size)), GPU)[0]
    (stage,) = sketch.of_kind(StageKind.TENSOR)
    population = sample(sketch, 256, np.random.default_rng(0))
    assert len(population) > 12
    tile = TensorTile.of(population, stage)
    assert (tile.shared_bytes <= Gpu().shared_bytes).all()
    assert (tile.warps * 32 <= Gpu().max_threads).all()
    # What TVM would put in the place of an operand of another type.
    assert (tile.result_bytes > np.maximum(*tile.operand_bytes) * tile.stages).all()
    pipelined = tile.stages > 1
    assert pipelined.any() == (size > 16)
    assert (tile.count("k") >= tile.stages)[pipelined].all()
    assert (estimate(population, GPU).seconds > 0).all()


def test_rows_in_shared_memory_are_padded() -> None:
    sketch = generate(typed(dags.matmul(64, 64, 64)), GPU)[0]
    population = sample(sketch, 256, np.random.default_rng(0))
    tile = TensorTile.of(population, sketch.of_kind(StageKind.TENSOR)[0])
    first, _ = tile.operand_bytes
    # 16 halves take 40, 32 take 40, 64 take 72.
    rows = {1: 40, 2: 40, 4: 72}
    expected = [tile.tile("i")[n] * rows[tile.chosen("fragments k")[n]] * 2 for n in range(len(population))]
    assert first.tolist() == expected
