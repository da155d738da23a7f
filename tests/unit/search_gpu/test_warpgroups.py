from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.device import Device, Gpu
from search.cost.analytic import estimate
from search.dag import Dag
from search.programs.annotate import sample
from search.programs.program import Population
from search.programs.warpgroup_tile import WarpgroupTile
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from search.sketches.tensor_core import match_product
from search.sketches.warpgroups import GROUP_THREADS, match_warpgroups, operand_matrices
from tests.devices import GPU
from tests.unit.search import dags


def device(capability: int = 90, cores: int = 132) -> Device:
    gpu = Gpu(capability=capability, dynamic_shared_bytes=227 << 10, resident_shared_bytes=228 << 10)
    return replace(GPU, cores=cores, gpu=gpu)


def product(rows: int = 2048, columns: int = 2048, depth: int = 2048, operand: str = "float16") -> Dag:
    graph = dags.matmul(rows, columns, depth)
    return replace(
        graph,
        buffers=tuple(replace(b, dtype=operand if b.name in "ab" else "float32") for b in graph.buffers),
    )


def by_columns(operand: str, extent: int = 2048) -> Dag:
    """A product whose right operand is stored as [columns, depth]."""
    axes = {"i": extent, "j": extent}
    one = dags.node("matmul", axes, ["a[i, k]", "b[j, k]"], reduction={"k": extent}, flops=2.0)
    sums = "int32" if operand == "int8" else "float32"
    return dags.dag(
        dict.fromkeys("ab", (extent, extent)), [one], dtypes={"a": operand, "b": operand, "matmul": sums}
    )


def sketch_of(graph: Dag) -> Sketch:
    (found,) = (one for one in generate(graph, device()) if one.of_kind(StageKind.WARPGROUPS))
    return found


def drawn(graph: Dag, count: int = 256) -> tuple[Population, WarpgroupTile]:
    population = sample(sketch_of(graph), count, np.random.default_rng(0))
    (stage,) = population.sketch.of_kind(StageKind.WARPGROUPS)
    return population, WarpgroupTile.of(population, stage)


def is_offered(graph: Dag, on: Device) -> bool:
    return match_warpgroups(graph, graph.node["matmul"], on) is not None


@pytest.mark.parametrize(("capability", "has"), [(80, False), (89, False), (90, True), (100, False)])
def test_only_capability_90_has_products_of_warpgroups(capability: int, has: bool) -> None:
    assert is_offered(product(), device(capability)) is has


@pytest.mark.parametrize(
    ("operand", "has"), [("float16", True), ("bfloat16", True), ("float32", False), ("int8", False)]
)
def test_operands_stored_by_rows_have_16_bits(operand: str, has: bool) -> None:
    assert is_offered(product(operand=operand), device()) is has


def test_bytes_are_multiplied_as_they_lie_along_the_sum() -> None:
    graph = by_columns("int8")
    assert is_offered(graph, device())
    population, tile = drawn(graph)
    assert {64, 128} == set(tile.tile("k").tolist())
    assert set(tile.tile("k")[tile.has_maps].tolist()) == {128}
    gpu = population.sketch.gpu
    assert gpu is not None
    assert (tile.shared_bytes <= gpu.dynamic_shared_bytes).all()


def test_products_are_large_enough_for_every_multiprocessor() -> None:
    assert not is_offered(product(512, 512), device())
    assert is_offered(product(512, 512), device(cores=64))
    assert not is_offered(product(4096, 32), device())


def test_they_are_one_sketch_beside_the_others() -> None:
    keys = [sketch.key for sketch in generate(product(), device())]
    assert keys[:2] == ["warpgroups matmul", "tensor cores matmul"]
    assert [sketch.key for sketch in generate(product(), device(80))] == keys[1:]


def test_drawn_tiles_are_within_the_limits() -> None:
    population, tile = drawn(product())
    gpu = population.sketch.gpu
    assert gpu is not None
    assert {64, 128, 256} == set(tile.tile("j").tolist())
    assert {1, 2} <= set(tile.chosen("warpgroups").tolist())
    assert (tile.shared_bytes <= gpu.dynamic_shared_bytes).all()
    assert (tile.registers <= gpu.registers).all()
    assert (tile.warps * 32 == GROUP_THREADS * tile.chosen("warpgroups")).all()
    assert (tile.stages < tile.count("k")).all()
    assert set(tile.tile("k")[tile.has_maps].tolist()) == {64}
    assert 0 < tile.has_maps.sum() < len(tile.has_maps)


@pytest.mark.parametrize("depth", [2048, 2052])
def test_tensor_maps_need_rows_of_16_bytes(depth: int) -> None:
    _, tile = drawn(product(depth=depth))
    assert tile.has_maps.any() == (depth % 8 == 0)


def test_operands_lie_as_matrices() -> None:
    graph, gpu = product(2048, 1024, 512), device().gpu
    assert gpu is not None
    matrix_product = match_product(graph, graph.node["matmul"], gpu)
    assert matrix_product is not None
    assert operand_matrices(graph, graph.node["matmul"], matrix_product) == [(1, 2048, 512), (1, 512, 1024)]


def test_tensor_maps_save_the_threads_loads() -> None:
    population, tile = drawn(product())
    seconds = estimate(population, device()).seconds
    other = population.values.copy()
    other[:, population.sketch.columns["matmul", "tensor maps"]] = 0
    slower = estimate(replace(population, values=other), device()).seconds
    assert (seconds[tile.has_maps] < slower[tile.has_maps]).all()


def test_the_estimate_prefers_them_for_large_products() -> None:
    others = next(one for one in generate(product(), device()) if one.of_kind(StageKind.TENSOR))
    best = [
        estimate(sample(sketch, 256, np.random.default_rng(0)), device()).seconds.min()
        for sketch in (sketch_of(product()), others)
    ]
    assert best[0] < best[1]
