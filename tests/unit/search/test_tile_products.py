"""AMX's products of tiles: their sizes, the nodes that match, their sketches, and the estimate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.profile import assumed_profile
from search.cost.analytic import estimate
from search.dag import Dag
from search.rules.space import generate
from search.sketches.intrinsics import best_tile_product, intrinsic_of
from search.sketches.tile_products import (
    INSTRUCTIONS,
    TileProduct,
    fitting_product,
    tile_product,
)
from search.stages.cpu import Tiled
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import drawn

FEATURES = ("amx_bf16", "amx_int8", "amx_tile", "avx512_vnni", "avx512f")
SERVER = replace(DEVICE, features=tuple(sorted({*DEVICE.features, *FEATURES})), vector_bytes=64)


def _matmul(rows: int, lanes: int, depth: int, *dtypes: str) -> Dag:
    product = node(
        "matmul", {"i": rows, "j": lanes}, ["a[i, k]", "b[k, j]"], reduction={"k": depth}, flops=2.0
    )
    types = dict(zip(("a", "b", "matmul"), dtypes or ("uint8", "int8", "int32"), strict=True))
    return dag({"a": (rows, depth), "b": (depth, lanes)}, [product], types, ("b",))


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ((128, 768, 3072), "amx_32x32x64_tdpbusd"),
        ((50, 40, 96), "amx_25x20x48_tdpbusd"),
        ((7, 64, 576), "amx_7x32x64_tdpbusd"),
        ((14, 24, 40), "amx_14x24x40_tdpbusd"),
        ((3, 64, 64), None),
        ((37, 64, 64), None),
        ((32, 4, 64), None),
        ((32, 64, 66), None),
        ((32, 64, 68), None),
    ],
)
def test_the_largest_sizes_divide_a_product(extents: tuple[int, int, int], expected: str | None) -> None:
    found = fitting_product(*extents, "tdpbusd")
    assert (found.name if found else None) == expected
    if found is not None:
        assert tile_product(found.name) == found
        assert sum(found.row_tiles) == found.tall
        assert sum(found.lane_tiles) == found.lanes


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_multiplies_its_types(name: str) -> None:
    graph = _matmul(32, 32, 64, *INSTRUCTIONS[name][:3])
    found = best_tile_product(graph, graph.nodes[0], SERVER)
    assert found is not None
    assert found.instruction == name
    without = tuple(one for one in SERVER.features if one not in ("amx_int8", "amx_bf16"))
    assert best_tile_product(graph, graph.nodes[0], replace(SERVER, features=without)) is None


def test_other_names_are_no_products_of_tiles() -> None:
    assert tile_product("dot_16x4_vnni") is None
    assert tile_product("amx_32x32x64_vpdpbusd") is None


def test_a_product_is_also_tiled_by_dot_products() -> None:
    names = {
        stage.intrinsic
        for sketch in generate(_matmul(64, 64, 256), SERVER)
        for stage in sketch.stages
        if stage.intrinsic
    }
    assert names == {"amx_32x32x64_tdpbusd", "dot_16x4_vnni"}
    stage = Tiled("matmul", "SSRSRS", intrinsic="amx_32x32x64_tdpbusd")
    assert intrinsic_of(stage) == TileProduct(32, 32, 64, "tdpbusd")


def test_tiles_are_estimated_to_be_faster_where_they_are_large() -> None:
    def fastest(rows: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for sketch in generate(_matmul(rows, 512, 512), SERVER):
            for stage in sketch.stages:
                if stage.intrinsic:
                    seconds = float(estimate(drawn(sketch, seed=1), SERVER).seconds.min())
                    kind = stage.intrinsic[:3]
                    found[kind] = min(seconds, found.get(kind, np.inf))
        return found

    large, small = fastest(512), fastest(4)
    assert large["amx"] < 0.6 * large["dot"]
    assert small["amx"] / small["dot"] > 1.5 * large["amx"] / large["dot"]


def test_amx_is_assumed_to_multiply_1024_bytes_in_a_cycle() -> None:
    wide = assumed_profile("x86_64", FEATURES, 2).multiply_adds
    narrow = assumed_profile("x86_64", ("amx_int8", "avx2"), 2).multiply_adds
    assert wide["amxint8"] * 64 == narrow["amxint8"] * 32 == 1024
    assert "amxbfloat16" in wide
    assert "amxbfloat16" not in narrow
