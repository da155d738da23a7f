"""Dot-product instructions: the nodes that match, their sketches, and the estimate of their programs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.device import Device, Gpu
from search.cost.analytic import estimate
from search.dag import NARROW, Dag
from search.evolution.mutate import mutate
from search.programs.nest import Nest
from search.programs.program import Population, Program, gather
from search.rules.space import generate
from search.sketches.intrinsics import (
    BY_NAME,
    INTRINSICS,
    Roles,
    best_intrinsic,
    dot_product,
    intrinsic_extents,
    match_roles,
    stage_roles,
)
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from search.sketches.variables import Choice, Split
from search.stages.cpu import Tiled
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import all_programs, drawn, program_of, sketch_of

SERVER = replace(DEVICE, features=(*DEVICE.features, "avx512_vnni"))
ALDER_LAKE = replace(DEVICE, features=(*DEVICE.features, "avx_vnni"))
GENOA = replace(SERVER, features=(*SERVER.features, "avx512_bf16"))
HASWELL = replace(DEVICE, features=("avx2", "fma"))
SKYLAKE_X = replace(DEVICE, features=("avx2", "avx512bw", "avx512f", "fma"))
BOARD = replace(DEVICE, triple="aarch64-linux-gnu", features=("asimd", "asimddp"), vector_bytes=16)
NEW_BOARD = replace(BOARD, features=("asimd", "asimddp", "bf16", "i8mm"))
OLD_BOARD = replace(BOARD, features=("asimd",))
VNNI = BY_NAME["dot_16x4_vnni"]
U8_S8 = {"a": "uint8", "b": "int8", "matmul": "int32"}


def _matmul(
    i: int = 32,
    j: int = 48,
    k: int = 64,
    *,
    dtypes: dict[str, str] | None = None,
    b: str = "b[k, j]",
    a: str = "a[i, k]",
    flops: float = 2.0,
    reducer: str = "sum",
    constants: tuple[str, ...] = (),
) -> Dag:
    a_shape = (k, i) if a == "a[k, i]" else (i, k)
    b_shape = (j, k) if b == "b[j, k]" else (k, j)
    product = node("matmul", {"i": i, "j": j}, [a, b], reduction={"k": k}, flops=flops, reducer=reducer)
    return dag({"a": a_shape, "b": b_shape}, [product], dtypes or U8_S8, constants)


def _conv(constants: tuple[str, ...] = ("weight",)) -> Dag:
    """Padding, a convolution of bytes, and a rectifier."""
    space = {"y": 8, "x": 8}
    return dag(
        {"data": (8, 8, 16), "weight": (3, 3, 16, 32)},
        [
            node("pad", {"y": 10, "x": 10, "c": 16}, ["data[y - 1, x - 1, c]"], has_branch=True),
            node(
                "conv",
                {**space, "f": 32},
                ["pad[y + ry, x + rx, c]", "weight[ry, rx, c, f]"],
                reduction={"ry": 3, "rx": 3, "c": 16},
                flops=2.0,
            ),
            node("relu", {**space, "f": 32}, ["conv[y, x, f]"], flops=1.0),
        ],
        {"data": "uint8", "pad": "uint8", "weight": "int8", "conv": "int32", "relu": "int32"},
        constants,
    )


def _matched(graph: Dag) -> Roles | None:
    return match_roles(graph, graph.nodes[-1], VNNI)


def _tensorized(graph: Dag, device: Device = SERVER) -> list[Sketch]:
    return [s for s in generate(graph, device) if any(stage.intrinsic for stage in s.stages)]


def test_a_product_of_bytes_is_a_sum_of_dot_products() -> None:
    assert _matched(_matmul()) == Roles(lane=1, depth=2, rows="a", columns="b", extents={1: 16, 2: 4})
    assert _matched(_matmul(b="b[j, k]")) == Roles(
        lane=1, depth=2, rows="a", columns="b", extents={1: 16, 2: 4}
    )


def test_the_operands_may_come_in_any_order() -> None:
    graph = _matmul()
    product = replace(graph.nodes[0], reads=graph.nodes[0].reads[::-1])
    found = match_roles(replace(graph, nodes=(product,)), product, VNNI)
    assert found == Roles(1, 2, "a", "b", {1: 16, 2: 4})


@pytest.mark.parametrize(
    "graph",
    [
        _matmul(j=40),
        _matmul(k=66),
        _matmul(a="a[k, i]"),
        _matmul(flops=3.0),
        _matmul(reducer="max"),
        _matmul(dtypes={**U8_S8, "matmul": "int16"}),
        _matmul(dtypes={**U8_S8, "a": "int8"}),
        _matmul(dtypes={**U8_S8, "b": "uint8"}),
        _matmul(dtypes={"a": "int8", "b": "uint8", "matmul": "int32"}),
    ],
    ids=[
        "lanes don't divide",
        "depth doesn't divide",
        "rows are not contiguous along the reduction",
        "more than a product",
        "not a sum",
        "another result",
        "signed rows",
        "unsigned columns",
        "signs the other way round",
    ],
)
def test_other_nodes_are_left_to_vectors(graph: Dag) -> None:
    assert _matched(graph) is None
    assert not _tensorized(graph)


def test_operands_that_both_have_the_lanes_are_no_dot_product() -> None:
    depthwise = node("depth", {"c": 32}, ["data[c, k]", "weight[c, k]"], reduction={"k": 8}, flops=2.0)
    types = {"data": "uint8", "weight": "int8", "depth": "int32"}
    assert _matched(dag({"data": (32, 8), "weight": (32, 8)}, [depthwise], types)) is None


def test_columns_that_the_subgraph_computes_are_not_rearranged() -> None:
    graph = dag(
        {"a": (32, 64), "raw": (64, 48)},
        [
            node("b", {"k": 64, "j": 48}, ["raw[k, j]"], is_expensive=True),
            node("matmul", {"i": 32, "j": 48}, ["a[i, k]", "b[k, j]"], reduction={"k": 64}, flops=2.0),
        ],
        {**U8_S8, "raw": "int8"},
    )
    assert _matched(graph) is None


@pytest.mark.parametrize(
    ("device", "types", "expected"),
    [
        (DEVICE, ("uint8", "int8", "int32"), None),
        (SERVER, ("uint8", "int8", "int32"), "dot_16x4_vnni"),
        (ALDER_LAKE, ("uint8", "int8", "int32"), "dot_8x4_avx_vnni"),
        (SERVER, ("int8", "int8", "int32"), None),
        (SERVER, ("bfloat16", "bfloat16", "float32"), None),
        (GENOA, ("bfloat16", "bfloat16", "float32"), "dot_16x2_dpbf16ps"),
        (GENOA, ("bfloat16", "bfloat16", "bfloat16"), None),
        (GENOA, ("float16", "float16", "float32"), None),
        (GENOA, ("uint8", "int8", "int32"), "dot_16x4_vnni"),
        (HASWELL, ("int16", "int8", "int32"), "dot_8x2_pmaddwd"),
        (HASWELL, ("uint8", "int8", "int32"), None),
        (SKYLAKE_X, ("int16", "int8", "int32"), "dot_16x2_pmaddwd"),
        (BOARD, ("int8", "int8", "int32"), "dot_4x4_i8i8s32_sdot"),
        (BOARD, ("uint8", "uint8", "uint32"), "dot_4x4_u8u8u32_udot"),
        (BOARD, ("uint8", "uint8", "int32"), "dot_4x4_u8u8i32_hdot"),
        (BOARD, ("uint8", "int8", "int32"), None),
        (NEW_BOARD, ("int8", "int8", "int32"), "mmla_2x4x64_smmla"),
        (NEW_BOARD, ("uint8", "uint8", "int32"), "mmla_2x4x64_ummla"),
        (NEW_BOARD, ("bfloat16", "bfloat16", "float32"), "mmla_2x4x32_bfmmla"),
        (HASWELL, ("int16", "int16", "int32"), "dot_8x2_int16_pmaddwd"),
        (SKYLAKE_X, ("int16", "int16", "int32"), "dot_16x2_int16_pmaddwd"),
        (OLD_BOARD, ("int8", "int8", "int32"), "dot_4x4_i8i8s32_neon"),
        (OLD_BOARD, ("uint8", "uint8", "int32"), None),
    ],
)
def test_a_device_uses_the_best_instruction_that_it_has(
    device: Device, types: tuple[str, ...], expected: str | None
) -> None:
    graph = _matmul(dtypes=dict(zip(("a", "b", "matmul"), types, strict=True)))
    found = best_intrinsic(graph, graph.nodes[0], device)
    assert (found.name if found else None) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (HASWELL, "dot_8x4_pmaddubsw"),
        (SKYLAKE_X, "dot_16x4_pmaddubsw"),
        (ALDER_LAKE, "dot_8x4_avx_vnni"),
        (SERVER, "dot_16x4_vnni"),
        (replace(DEVICE, features=("avx",)), ""),
    ],
)
def test_sums_that_may_saturate_take_narrow_columns_only(device: Device, expected: str) -> None:
    """The least and greatest narrow integers are just narrow enough for 16 bits."""
    graph = _matmul()
    narrow = replace(graph, buffers=tuple(replace(one, narrow=one.name == "b") for one in graph.buffers))
    assert _named(narrow, device) == expected
    of_rows = replace(graph, buffers=tuple(replace(one, narrow=one.name == "a") for one in graph.buffers))
    assert "pmaddubsw" not in _named(of_rows, device)
    assert 2 * 255 * NARROW < 1 << 15 <= 2 * 255 * (NARROW + 1) + 2


def test_two_rows_at_once_need_neighbouring_rows() -> None:
    smmla = BY_NAME["mmla_2x4x64_smmla"]
    types = {"a": "int8", "b": "int8", "matmul": "int32"}
    assert _named(_matmul(5, dtypes=types), NEW_BOARD) == "dot_4x4_i8i8s32_sdot"
    found = match_roles(_matmul(dtypes=types), _matmul(dtypes=types).nodes[0], smmla)
    assert found == Roles(lane=1, depth=2, rows="a", columns="b", extents={0: 2, 1: 4, 2: 64})
    found = match_roles(_row_conv(1), _row_conv(1).nodes[0], BY_NAME["mmla_2x4x32_smmla"])
    assert found == Roles(lane=1, depth=3, rows="data", columns="weight", extents={0: 2, 1: 4, 3: 32})


def test_two_rows_at_once_fit_no_strided_rows() -> None:
    assert _named(_row_conv(1), NEW_BOARD) == "mmla_2x4x32_smmla"
    assert _named(_row_conv(2), NEW_BOARD) == "dot_4x4_i8i8s32_sdot"


def test_the_estimate_counts_every_step_of_an_intrinsic() -> None:
    cycles = []
    for device, depth in ((BOARD, 32), (NEW_BOARD, 64)):
        graph = _matmul(
            8, 8, 64 * depth, dtypes={"a": "int8", "b": "int8", "matmul": "int32"}, constants=("b",)
        )
        name = _named(graph, device)
        settings = {"i": (1, 1, 1, 8 // BY_NAME[name].tall), "j": (1, 1, 1, 2), "unroll": 0}
        steps = 64 * depth // BY_NAME[name].depth
        sketch = sketch_of(graph, f"tile matmul SSRSRS of {name}", device)
        program = program_of(sketch, matmul={**settings, "k": (1, steps)})
        (found,) = estimate(_alone(program), device).quantities["cycles"]
        cycles.append(found)
    # An instruction does twice the work, and there is twice the work.
    assert cycles[0] == pytest.approx(cycles[1])


def _row_conv(stride: int) -> Dag:
    conv = node(
        "conv",
        {"x": 8, "f": 32},
        [f"data[{stride}*x + r, c]", "weight[r, c, f]"],
        reduction={"r": 3, "c": 32},
        flops=2.0,
    )
    types = {"data": "int8", "weight": "int8", "conv": "int32"}
    return dag({"data": (8 * stride + 2, 32), "weight": (3, 32, 32)}, [conv], types)


def _named(graph: Dag, device: Device) -> str:
    found = best_intrinsic(graph, graph.nodes[-1], device)
    return found.name if found else ""


def test_names_are_distinct() -> None:
    assert len(BY_NAME) == len(INTRINSICS)


def test_sketches_exist_with_and_without_the_instruction() -> None:
    assert [sketch.key for sketch in generate(_matmul(), SERVER)] == [
        "tile matmul SSRSRS of dot_16x4_vnni",
        "tile matmul SSRSRS of dot_16x4_vnni in a write cache, copy at 1",
        "tile matmul SSRSRS of dot_16x4_vnni in a write cache, copy at 2",
        "tile matmul SSRSRS in a write cache, copy at 1",
        "tile matmul SSRSRS in a write cache, copy at 2",
        "tile matmul SSRSRS",
    ]


def test_the_consumer_is_fused_and_the_padding_stays_in_memory() -> None:
    found = _tensorized(_conv())
    assert [sketch.key for sketch in found] == [
        "nest pad; tile conv SSRSRS of dot_16x4_vnni; nest relu",
        "nest pad; tile conv SSRSRS of dot_16x4_vnni, relu at 1; fuse relu",
        "nest pad; tile conv SSRSRS of dot_16x4_vnni, relu at 2; fuse relu",
    ]
    for sketch in found:
        location = sketch.choice("pad", "location")
        assert location is not None
        assert location.options == ("root", "1", "2", "3")


def test_a_producer_of_an_operand_is_not_inlined() -> None:
    graph = dag(
        {"raw": (32, 64), "b": (64, 48)},
        [
            node("a", {"i": 32, "k": 64}, ["raw[i, k]"], flops=1.0),
            node("matmul", {"i": 32, "j": 48}, ["a[i, k]", "b[k, j]"], reduction={"k": 64}, flops=2.0),
        ],
        {**U8_S8, "raw": "uint8"},
    )
    placed = {bool(s.stage["matmul"].intrinsic): s.stage["a"].kind for s in generate(graph, SERVER)}
    assert placed == {True: StageKind.NEST, False: StageKind.INLINE}


def test_tiles_are_counted_in_instructions() -> None:
    sketch = sketch_of(_matmul(32, 48, 64), "tile matmul SSRSRS of dot_16x4_vnni", SERVER)
    counted = {v.axis: v.extent for v in sketch.variables if isinstance(v, Split)}
    assert counted == {0: 32, 1: 3, 2: 16}


@pytest.mark.parametrize(("constants", "ways"), [((), ("0", "2", "3")), (("b",), ("packed",))])
def test_columns_are_always_rearranged(constants: tuple[str, ...], ways: tuple[str, ...]) -> None:
    sketch = sketch_of(_matmul(constants=constants), "tile matmul SSRSRS of dot_16x4_vnni", SERVER)
    choice = sketch.choice("matmul", "read b")
    assert isinstance(choice, Choice)
    assert choice.options == ways


def test_an_axis_of_one_instruction_is_not_split() -> None:
    sketch = sketch_of(_matmul(32, 16, 4), "tile matmul SSRSRS of dot_16x4_vnni", SERVER)
    assert {v.axis for v in sketch.variables if isinstance(v, Split)} == {0}
    population = drawn(sketch, seed=0)
    nest = Nest.of(population, sketch.stages[0])
    assert (nest.inside[0] == [[32], [16], [4]]).all()


def test_a_program_reads_as_its_loops_around_instructions() -> None:
    sketch = sketch_of(_matmul(constants=("b",)), "tile matmul SSRSRS of dot_16x4_vnni", SERVER)
    settings = {"i": (2, 2, 2, 4), "j": (3, 1, 1, 1), "k": (4, 4), "unroll": 16}
    assert str(program_of(sketch, matmul=settings)).splitlines() == [
        "tile matmul SSRSRS of dot_16x4_vnni",
        "  S0 i=2 j=3",
        "  S1 i=2",
        "  R0 k=4",
        "  S2 i=2",
        "  R1 k=4",
        "  S3 i=4",
        "  unroll 16",
        "  read a 2",
        "  read b packed",
    ]


@pytest.mark.parametrize("graph", [_matmul(), _conv(), _conv(())], ids=["matmul", "packed", "copied"])
def test_programs_cover_every_element_and_change_into_others(graph: Dag) -> None:
    for sketch in _tensorized(graph):
        population = drawn(sketch, seed=1, count=64)
        (tiled,) = sketch.tiled
        whole = [axis.extent for axis in graph.node[tiled.node].axes]
        assert (Nest.of(population, tiled).inside[0] >= np.array(whole)[:, None]).all()
        all_programs(mutate(population, np.random.default_rng(2)))


def test_an_instruction_takes_as_long_as_one_of_a_vector() -> None:
    """Two accumulators in a row: as many cycles as a quarter of the products take in vectors."""
    settings = {"i": (4, 1, 1, 8), "k": (1, 16), "unroll": 0, "read a": "direct", "read b": "packed"}
    sketch = sketch_of(_matmul(32, 32, 64, constants=("b",)), "tile matmul SSRSRS of dot_16x4_vnni", SERVER)
    dots = program_of(sketch, matmul={**settings, "j": (1, 1, 1, 2)})
    sketch = sketch_of(_matmul(32, 32, 16, constants=("b",)), "tile matmul SSRSRS", SERVER)
    vectors = program_of(sketch, matmul={**settings, "j": (1, 1, 1, 32)})
    (dot_cycles,), (cycles,) = (
        estimate(_alone(program), SERVER).quantities["cycles"] for program in (dots, vectors)
    )
    assert dot_cycles == pytest.approx(cycles)


@pytest.mark.parametrize(
    ("types", "depth", "rate", "device"),
    [
        (U8_S8, 4, "int8", GENOA),
        ({"a": "bfloat16", "b": "bfloat16", "matmul": "float32"}, 2, "dotbfloat16", GENOA),
        ({"a": "int16", "b": "int8", "matmul": "int32"}, 2, "dotint16", SKYLAKE_X),
        ({"a": "int16", "b": "int16", "matmul": "int32"}, 2, "dotint16", SKYLAKE_X),
    ],
    ids=["bytes", "bfloat16", "widened", "int16"],
)
def test_the_estimate_takes_an_instructions_own_rate(
    types: dict[str, str], depth: int, rate: str, device: Device
) -> None:
    """At half the rate, 16 accumulators take as many cycles as twice the instructions would."""
    columns = types["b"]
    (name,) = (
        one.name for one in INTRINSICS if one.rate == rate and one.lanes == 16 and one.columns == columns
    )
    graph = _matmul(32, 32, 64 * depth, dtypes=types, constants=("b",))
    sketch = sketch_of(graph, f"tile matmul SSRSRS of {name}", device)
    program = program_of(sketch, matmul={"i": (4, 1, 1, 8), "j": (1, 1, 1, 2), "k": (1, 64), "unroll": 0})
    cycles = []
    for speed in (2.0, 1.0):
        base = device.speeds
        profile = replace(base, multiply_adds={**base.multiply_adds, rate: speed, "int32": 0.1})
        calibrated = replace(device, profile=profile)
        (found,) = estimate(_alone(program), calibrated).quantities["cycles"]
        cycles.append(found)
    assert 1.5 < cycles[1] / cycles[0] <= 2.0


def test_tall_tiles_widen_columns_for_several_rows() -> None:
    """pmaddwd reads int16, so a vector of bytes is widened before. Several rows share that instruction."""
    graph = _matmul(32, 64, 128, dtypes={"a": "int16", "b": "int8", "matmul": "int32"}, constants=("b",))
    device = replace(SKYLAKE_X, profile=replace(SKYLAKE_X.speeds, loads=100.0, latency_cycles=0.1))
    sketch = sketch_of(graph, "tile matmul SSRSRS of dot_16x2_pmaddwd", device)
    flat, tall = (
        program_of(
            sketch,
            matmul={
                "i": (8, 1, 4 // rows, rows),
                "j": (1, 1, rows, 4 // rows),
                "k": (1, 64),
                "read b": "packed",
                "unroll": 0,
            },
        )
        for rows in (1, 4)
    )
    cycles = estimate(gather([flat, tall]), device).quantities["cycles"]
    assert cycles[0] / cycles[1] == pytest.approx((4 + 2) / (4 + 0.5), rel=0.02)


def test_a_convolution_of_bfloat16_fuses_its_consumer() -> None:
    conv = _conv()
    types = {
        "data": "bfloat16",
        "pad": "bfloat16",
        "weight": "bfloat16",
        "conv": "float32",
        "relu": "bfloat16",
    }
    graph = replace(conv, buffers=tuple(replace(one, dtype=types[one.name]) for one in conv.buffers))
    assert [sketch.key for sketch in _tensorized(graph, GENOA)] == [
        "nest pad; tile conv SSRSRS of dot_16x2_dpbf16ps; nest relu",
        "nest pad; tile conv SSRSRS of dot_16x2_dpbf16ps, relu at 1; fuse relu",
        "nest pad; tile conv SSRSRS of dot_16x2_dpbf16ps, relu at 2; fuse relu",
    ]


def test_the_original_order_of_the_columns_does_not_matter_to_registers() -> None:
    loads = []
    for b in ("b[k, j]", "b[j, k]"):
        graph = _matmul(b=b, constants=("b",))
        sketch = sketch_of(graph, "tile matmul SSRSRS of dot_16x4_vnni", SERVER)
        loads.append(estimate(drawn(sketch, seed=3), SERVER).quantities["loads_per_fma"])
    assert np.array_equal(loads[0], loads[1])


def _alone(program: Program) -> Population:
    return gather([program])


def test_an_intrinsic_that_does_not_fit_its_node_is_refused() -> None:
    graph = _matmul(j=40)
    stage = Tiled("matmul", "SSRSRS", intrinsic="dot_16x4_vnni")
    with pytest.raises(ValueError, match="dot_16x4_vnni does not compute matmul"):
        stage_roles(graph, stage)
    assert intrinsic_extents(graph, replace(stage, intrinsic="")) == {}


@pytest.mark.parametrize(
    "device", [SERVER, ALDER_LAKE, GENOA, HASWELL, SKYLAKE_X, BOARD, NEW_BOARD, OLD_BOARD]
)
def test_a_device_prefers_narrow_weights_if_its_best_intrinsic_is_for_these(device: Device) -> None:
    best = dot_product(device.features, 64, "int8", narrow=True)
    assert device.prefers_narrow_weights == (best is not None and best.narrow)
    assert not replace(device, gpu=Gpu()).prefers_narrow_weights
