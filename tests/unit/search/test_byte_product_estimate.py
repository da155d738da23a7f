"""The estimate of dot products whose instruction doesn't add to the sums: x86's pmaddubsw and pmaddwd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.device import Device
from search.cost.analytic import estimate
from search.programs.program import gather
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import program_of, sketch_of

SPEEDS = replace(
    DEVICE.speeds,
    registers=16,
    loads=100.0,
    multiply_adds={"float32": 2.0, "dotuint8": 1.0, "dotint16": 1.0, "int8": 1.0},
)
HASWELL = replace(DEVICE, features=("avx2", "fma"), vector_bytes=32, profile=SPEEDS)
ALDER_LAKE = replace(HASWELL, features=("avx2", "avx_vnni", "fma"))
BYTES, SHORTS, VNNI = "dot_8x4_pmaddubsw", "dot_8x2_int16_pmaddwd", "dot_8x4_avx_vnni"
STEPS = 64


def _quantities(
    intrinsic: str, rows: int, vectors: int, device: Device = HASWELL, **settings: Any
) -> dict[str, float]:
    """Return the quantities of a product of 8 tiles of `rows` rows, and 8 of `vectors` vectors."""
    depth, *types = (2, "int16", "int16") if intrinsic == SHORTS else (4, "uint8", "int8")
    n, m, k = 8 * rows, 64 * vectors, STEPS * depth
    graph = dag(
        {"a": (n, k), "b": (k, m)},
        [node("matmul", {"i": n, "j": m}, ["a[i, k]", "b[k, j]"], reduction={"k": k}, flops=2.0)],
        dtypes={"a": types[0], "b": types[1], "matmul": "int32"},
        constants=("b",),
    )
    narrow = tuple(replace(one, narrow=one.name == "b" and intrinsic != SHORTS) for one in graph.buffers)
    sketch = sketch_of(replace(graph, buffers=narrow), f"tile matmul SSRSRS of {intrinsic}", device)
    tiles = {"i": (8, 1, 1, rows), "j": (8, 1, 1, vectors), "k": (1, STEPS)}
    values = tiles | {"read b": "packed", "unroll": 0} | settings
    found = estimate(gather([program_of(sketch, matmul=values)]), device).quantities
    return {name: float(value[0]) for name, value in found.items()}


@pytest.mark.parametrize(
    ("intrinsic", "rows", "vectors", "is_missing"),
    [
        pytest.param(BYTES, 13, 1, False, id="the vector, a row, and the ones fit"),
        pytest.param(BYTES, 14, 1, True, id="a register for the ones is missing"),
        pytest.param(BYTES, 6, 2, True, id="a row of two vectors needs one for products"),
        pytest.param(SHORTS, 14, 1, False, id="pmaddwd needs no ones"),
        pytest.param(SHORTS, 6, 2, False, id="two vectors, a row, and products fit"),
        pytest.param(SHORTS, 7, 2, True, id="a register for products is missing"),
    ],
)
def test_products_and_ones_take_registers(intrinsic: str, rows: int, vectors: int, is_missing: bool) -> None:
    assert (_quantities(intrinsic, rows, vectors)["spills"] > 0) == is_missing


def test_instructions_that_add_to_sums_take_no_further_registers() -> None:
    assert _quantities(VNNI, 7, 2, ALDER_LAKE)["spills"] == 0


@pytest.mark.parametrize(("intrinsic", "waits"), [(BYTES, False), (SHORTS, False), (VNNI, True)])
def test_a_sum_waits_for_an_addition_only(intrinsic: str, waits: bool) -> None:
    """One sum, which every step adds to."""
    device = replace(HASWELL if not waits else ALDER_LAKE, profile=replace(SPEEDS, latency_cycles=100.0))
    steps = 8 * 8 * STEPS
    assert (_quantities(intrinsic, 1, 1, device)["cycles"] > 50 * steps) == waits


def test_a_step_on_a_sum_in_memory_takes_as_long_as_one_of_float32() -> None:
    """The sum is loaded and stored while the products of bytes are computed."""
    rows = 28
    floats = dag(
        {"a": (8 * rows, STEPS), "b": (STEPS, 64)},
        [
            node(
                "matmul",
                {"i": 8 * rows, "j": 64},
                ["a[i, k]", "b[k, j]"],
                reduction={"k": STEPS},
                flops=2.0,
            )
        ],
    )
    tiles = {"i": (8, 1, 1, rows), "j": (8, 1, 1, 8), "k": (1, STEPS), "read a": "direct", "read b": "direct"}
    program = program_of(sketch_of(floats, "tile matmul SSRSRS"), matmul=tiles | {"unroll": 0})
    in_floats = float(estimate(gather([program]), HASWELL).quantities["cycles"][0])
    assert _quantities(BYTES, rows, 1)["cycles"] == pytest.approx(in_floats, rel=0.02)


@pytest.mark.parametrize(
    ("around", "unroll", "stored"),
    [
        # 2 rows of 64 steps, for each of 8 tiles of rows.
        pytest.param({"i": (8, 1, 1, 2), "j": (1, 8, 1, 1)}, 512, 8 * 2 * STEPS, id="a loop over columns"),
        pytest.param({"i": (1, 8, 1, 2), "j": (8, 1, 1, 1)}, 512, 0, id="a loop over rows"),
        pytest.param({"i": (8, 1, 1, 2), "j": (1, 8, 1, 1)}, 0, 0, id="a loop over the reduction"),
    ],
)
def test_rows_that_lack_registers_are_stored_ahead_of_a_loop(
    around: dict[str, Any], unroll: int, stored: int
) -> None:
    # Sums are loaded and stored once a tile.
    computed = 8 * 8 * (2 * STEPS + 2 * 2)
    loops = 0.05 * 8 * 8 * STEPS
    found = _quantities(BYTES, 2, 1, **around, unroll=unroll)["cycles"]
    assert found - computed - stored == pytest.approx(0, abs=loops)
