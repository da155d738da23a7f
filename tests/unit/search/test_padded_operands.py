"""What the estimate says of operands that are padded or widened where they are loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search.cost.analytic import estimate
from search.cost.border_tiles import MAX_SUMS, border_share
from search.dag import Dag
from search.programs.code_size import GATHER_INSTRUCTIONS
from search.programs.compute_location import bytes_in_memory
from search.programs.nest import Nest
from search.programs.program import Program, gather
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import program_of, sketch_of

SKETCH = "nest pad; tile depthwise SSRSRS, clip at 1; fuse clip"
TILES = {"i": (7, 1, 1, 2), "j": (14, 1, 1, 1)}


def _depthwise(dtype: str) -> Dag:
    """Return a depthwise convolution in float32 of data of this type."""
    graph = dags.depthwise()
    buffers = tuple(replace(one, dtype=dtype) if one.name == "data" else one for one in graph.buffers)
    return replace(graph, buffers=buffers)


def _program(graph: Dag, location: str, tiles: Mapping[str, Any]) -> Program:
    rest = {"c": (1, 1, 2, 16), "di": (3, 1), "dj": (1, 3), "unroll": 16, "read weight": "3"}
    settings = {**rest, **tiles}
    return program_of(sketch_of(graph, SKETCH), pad={"location": location}, depthwise=settings)


@pytest.mark.parametrize(
    ("i", "j", "is_flat", "sums", "share"),
    [
        pytest.param(
            (7, 1, 1, 2), (14, 1, 1, 1), True, 9, 1 - 5 / 7 * 12 / 14, id="tiles in both directions"
        ),
        pytest.param((14, 1, 1, 1), (1, 1, 2, 7), True, 9, 2 / 14, id="rows over the whole width"),
        pytest.param((14, 1, 1, 1), (1, 1, 2, 7), False, 9, 1 - 12 / 14 * 5 / 7, id="such rows in loops"),
        pytest.param(
            (1, 2, 7, 1), (2, 1, 1, 7), True, 9, 0.0, id="two tiles, whose conditions are constants"
        ),
        pytest.param((7, 1, 1, 2), (14, 1, 1, 1), True, MAX_SUMS + 1, 1.0, id="tiles with one body"),
    ],
)
def test_only_tiles_at_a_border_have_conditions(
    i: tuple[int, ...], j: tuple[int, ...], is_flat: bool, sums: int, share: float
) -> None:
    graph = dags.depthwise()
    population = gather([_program(graph, "inline", {"i": i, "j": j})])
    nest = Nest.of(population, population.sketch.stage["depthwise"])
    (padded,) = (read for read in nest.node.reads if read.buffer == "pad")
    found = border_share(graph, nest, padded, np.array([is_flat]), np.array([float(sums)]))
    assert found == pytest.approx(share)


@pytest.mark.parametrize(
    ("i", "j", "share"),
    [
        pytest.param((7, 1, 1, 2), (14, 1, 1, 1), 1 - 3 / 7 * 8 / 14, id="several tiles at each border"),
        pytest.param((14, 1, 1, 1), (1, 1, 1, 14), 1 - 8 / 14 * 8 / 14, id="rows over the whole width"),
    ],
)
def test_wide_padding_reaches_more_tiles(i: tuple[int, ...], j: tuple[int, ...], share: float) -> None:
    graph = dags.depthwise(kernel=7)
    settings = {"i": i, "j": j, "di": (7, 1), "dj": (7, 1), "unroll": 0}
    population = gather([_program(graph, "inline", settings)])
    nest = Nest.of(population, population.sketch.stage["depthwise"])
    (padded,) = (read for read in nest.node.reads if read.buffer == "pad")
    found = border_share(graph, nest, padded, np.array([False]), np.array([1.0]))
    assert found == pytest.approx(share)


@pytest.mark.parametrize(("x", "at_border"), [((1, 1, 1, 16), 1.0), ((4, 1, 1, 16), 0.5)])
def test_lanes_at_a_border_are_loaded_one_by_one(x: tuple[int, ...], at_border: float) -> None:
    """The vectors of an image whose channels come first lie along its padded rows."""
    width = math.prod(x)
    graph = dag(
        {"data": (16, width), "weight": (16, 3, 8)},
        [
            node("pad", {"c": 16, "x": width + 2}, ["data[c, x - 1]"], has_branch=True),
            node(
                "conv",
                {"f": 8, "x": width},
                ["pad[c, x + r]", "weight[c, r, f]"],
                reduction={"c": 16, "r": 3},
                flops=2.0,
            ),
        ],
    )
    sketch = sketch_of(graph, "nest pad; tile conv SSRSRS")
    settings = {"f": (2, 1, 1, 4), "x": x, "c": (16, 1), "r": (3, 1), "unroll": 0, "read weight": "direct"}
    inline, copied = (
        estimate(gather([program_of(sketch, pad={"location": location}, conv=settings)]), DEVICE)
        for location in ("inline", "1")
    )
    more = inline.quantities["loads_per_fma"] - copied.quantities["loads_per_fma"]
    gathered = GATHER_INSTRUCTIONS * 16 / (4 * 16 / DEVICE.lanes(4))
    assert gathered <= more / at_border < 4 * gathered


def test_a_row_of_channels_has_one_condition() -> None:
    """A padded copy with longer rows of channels takes less time, although it has more elements."""
    short, long = (
        estimate(gather([_program(dags.depthwise(size, channels), "root", tiles)]), DEVICE)
        for size, channels, tiles in (
            (28, 32, {"i": (28, 1, 1, 1), "j": (28, 1, 1, 1), "c": (1, 1, 2, 16)}),
            (14, 128, {"i": (14, 1, 1, 1), "j": (14, 1, 1, 1), "c": (4, 1, 2, 16)}),
        )
    )
    assert long.quantities["nest_0_s"] < short.quantities["nest_0_s"]


@pytest.mark.parametrize(("location", "num_bytes"), [("inline", 1), ("root", 4)])
def test_an_inline_operand_is_loaded_in_its_own_type(location: str, num_bytes: int) -> None:
    bytes_, floats = (
        gather([_program(_depthwise(dtype), location, TILES)]) for dtype in ("uint8", "float32")
    )
    assert bytes_in_memory(bytes_, "pad") == num_bytes
    of_bytes, of_floats = (estimate(one, DEVICE).quantities for one in (bytes_, floats))
    assert (of_bytes["l3_traffic"] < of_floats["l3_traffic"]) == (num_bytes == 1)
    # Bytes become floats by two instructions for every load, unless a copy widens them once.
    assert (of_bytes["loads_per_fma"] > of_floats["loads_per_fma"]) == (num_bytes == 1)


def test_tiles_in_an_unrolled_body_share_widened_operands_beyond_the_registers() -> None:
    """14 sums read 36 vectors in nine steps of 14, more than the registers hold."""
    tiles = {"i": (7, 1, 1, 2), "j": (2, 1, 1, 7), "di": (1, 3), "dj": (1, 3)}
    in_body, in_loop = (
        estimate(gather([_program(_depthwise("uint8"), "inline", tiles | {"unroll": unroll})]), DEVICE)
        for unroll in (512, 0)
    )
    assert in_body.quantities["loads_per_fma"] < in_loop.quantities["loads_per_fma"] / 1.5


@pytest.mark.parametrize(
    ("dtype", "count"), [("uint8", 2), ("int16", 2), ("float16", 1), ("float32", 0), ("bool", 0)]
)
def test_shorter_operands_are_widened(dtype: str, count: int) -> None:
    graph = _depthwise(dtype)
    assert graph.widenings(graph.node["pad"]) == count


def test_sums_stay_in_a_small_buffer_until_the_epilogue_stores_bytes() -> None:
    graph = dags.depthwise()
    shorter = tuple(replace(one, dtype="uint8") if one.name == "clip" else one for one in graph.buffers)
    of_bytes, of_floats = (
        estimate(gather([_program(one, "root", TILES)]), DEVICE).quantities["l3_traffic"]
        for one in (replace(graph, buffers=shorter), graph)
    )
    assert of_bytes < of_floats
