from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from core.device import Device, Gpu
from search.cost.analytic import estimate
from search.cost.cost_parameters import FITTED
from search.cost.features import NUM_FEATURES, QUANTITIES, extract
from search.cost.tile_registers import FORWARD_CYCLES
from search.programs.program import Program, gather
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from tests.unit.search import dags
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DAGS, DEVICE
from tests.unit.search.programs import drawn, middling, program_of, seeds, sketch_of, sketches

GPU = replace(DEVICE, gpu=Gpu())
BOARD = replace(DEVICE, vector_bytes=16, cores=1, l1_bytes=16 << 10, l2_bytes=256 << 10, l3_bytes=512 << 10)


@given(sketches, seeds)
def test_every_estimate_is_positive_and_finite(sketch: Sketch, seed: int) -> None:
    population = drawn(sketch, seed)
    for device in (DEVICE, BOARD):
        guess = estimate(population, device)
        assert guess.seconds.shape == (len(population),)
        assert np.isfinite(guess.seconds).all()
        assert (guess.seconds > 0).all()
        for name, values in guess.quantities.items():
            assert np.isfinite(values).all(), name
            assert (values >= 0).all(), name


@given(sketches, seeds)
def test_features_of_a_program_do_not_depend_on_its_population(sketch: Sketch, seed: int) -> None:
    population = drawn(sketch, seed, count=8)
    together = extract(sketch.dag, estimate(population, DEVICE))
    for row in range(len(population)):
        alone = extract(sketch.dag, estimate(population.take(np.array([row])), DEVICE))
        assert np.array_equal(together[row], alone[0], equal_nan=True)


@given(sketches, seeds)
def test_features_are_numbers_or_missing(sketch: Sketch, seed: int) -> None:
    population = drawn(sketch, seed)
    features = extract(sketch.dag, estimate(population, DEVICE))
    assert features.shape == (len(population), NUM_FEATURES)
    assert not np.isinf(features).any()


def test_every_quantity_has_a_feature() -> None:
    described: set[str] = set()
    for device in (DEVICE, GPU):
        for make in DAGS.values():
            for sketch in generate(make(), device):
                described |= set(estimate(drawn(sketch, 0), device).quantities)
    assert described == set(QUANTITIES)


Tiling = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _matmul(tiling: Tiling) -> Program:
    sketch = sketch_of(dags.matmul(n=64, m=64, k=64), "tile matmul SSRSRS")
    factors = dict(zip("ijk", tiling, strict=True))
    return program_of(sketch, matmul=factors | {"unroll": 0, "read a": "direct", "read b": "direct"})


def _matmul_s(tiling: Tiling, device: Device = DEVICE) -> float:
    return float(estimate(gather([_matmul(tiling)]), device).seconds[0])


def _cycles(tiling: Tiling, device: Device) -> float:
    return float(estimate(gather([_matmul(tiling)]), device).quantities["cycles"][0])


GOOD = ((8, 1, 1, 8), (2, 1, 1, 32), (1, 64))


@pytest.mark.parametrize(
    "worse",
    [
        pytest.param(((64, 1, 1, 1), (64, 1, 1, 1), (64, 1)), id="without a register tile"),
        pytest.param(((8, 1, 1, 8), (16, 4, 1, 1), (1, 64)), id="without vectors"),
        pytest.param(((2, 1, 1, 32), (2, 1, 1, 32), (1, 64)), id="with more accumulators than registers"),
        pytest.param(((4, 1, 2, 8), (2, 1, 1, 32), (64, 1)), id="with accumulators stored at every step"),
    ],
)
def test_a_plainly_worse_program_is_estimated_slower(worse: Tiling) -> None:
    assert _matmul_s(GOOD) < _matmul_s(worse)


@pytest.mark.parametrize(("size", "is_worth_it"), [(16, False), (256, True)])
def test_only_loops_longer_than_the_start_of_threads_are_parallel(size: int, is_worth_it: bool) -> None:
    sketch = sketch_of(dags.matmul(n=size, m=size, k=size), "tile matmul SSRSRS")

    def seconds(chunks: int) -> float:
        rows = {"i": (chunks, size // 8 // chunks, 1, 8), "j": (1, size // 16, 1, 16), "k": (1, size)}
        values = rows | {"unroll": 0, "read a": "direct", "read b": "direct"}
        return float(estimate(gather([program_of(sketch, matmul=values)]), DEVICE).seconds[0])

    assert (seconds(2) < seconds(1)) == is_worth_it


def test_a_tile_of_one_element_is_not_expected_to_become_vectors() -> None:
    """LLVM rarely vectorizes the loop around an unrolled reduction."""
    assert _matmul_s(((8, 1, 8, 1), (2, 1, 32, 1), (16, 4))) > 2 * _matmul_s(GOOD)


def test_a_smaller_device_is_estimated_slower() -> None:
    assert _matmul_s(GOOD, DEVICE) < _matmul_s(GOOD, BOARD)


def test_loads_cost_more_where_instructions_do_not_read_memory() -> None:
    """On Arm, a loop of whole vectors reads four scalars by one load. A core decodes three instructions per
    cycle and computes two vectors, so that other loops wait for their loads.
    """
    arm = replace(BOARD, triple="aarch64-linux-gnu", mcpu="cortex-a72")
    x86 = replace(BOARD, profile=arm.speeds)
    rows, columns = (16, 1, 1, 4), (4, 1, 1, 16)
    whole, odd = ((rows, columns, (1, 64)), (rows, columns, (32, 2)))
    assert _cycles(whole, arm) < 1.1 * _cycles(whole, x86)
    assert _cycles(odd, arm) > 1.15 * _cycles(odd, x86)


@pytest.mark.parametrize(("unroll", "loads"), [(16, 1.0), (64, 4.0)])
def test_an_unrolled_loop_loads_scalars_one_by_one(unroll: int, loads: float) -> None:
    """The loop of 16 steps over channels is unrolled, not those over the kernel around it."""
    arm = replace(BOARD, triple="aarch64-linux-gnu", mcpu="cortex-a72")
    tiles = {"y": (14, 1, 1, 1), "x": (7, 1, 1, 2), "f": (4, 1, 1, 8), "ry": (1, 3), "rx": (1, 3)}
    settings = tiles | {"rc": (1, 16), "unroll": unroll, "read weight": "3"}
    sketch = sketch_of(dags.conv2d(), "nest pad; tile conv SSRSRS, relu at 1; inline add; fuse relu")
    program = program_of(sketch, pad={"location": "root"}, conv=settings)
    found = estimate(gather([program]), arm).quantities
    scalars, vectors = 2.0, 2.0
    assert found["loads_per_fma"] == pytest.approx((scalars * loads / 4 + vectors) / 4)


def test_more_work_takes_longer() -> None:
    first, second = (
        float(estimate(gather([middling(sketch)]), DEVICE).seconds[0])
        for size in (14, 56)
        for sketch in generate(dags.add_relu(size), DEVICE)
    )
    assert first < second


@pytest.mark.parametrize(
    ("field", "worse"),
    [
        ("hertz", 0.5),
        ("registers", 0.5),
        ("loads", 0.25),
        ("l1_rate", 0.1),
        ("l2_rate", 0.1),
        ("launch_s", 100.0),
    ],
)
def test_every_speed_comes_from_the_profile(field: str, worse: float) -> None:
    """If one speed is worse, all programs of a convolution take as long or longer, and some longer."""
    speeds = DEVICE.speeds
    value = getattr(speeds, field)
    slow: Any = value * worse if isinstance(value, float) else int(value * worse)
    less = replace(DEVICE, profile=replace(speeds, **{field: slow}))
    populations = [drawn(sketch, 0, count=64) for sketch in generate(dags.conv2d(), DEVICE)]
    before, after = (
        np.concatenate([estimate(population, device).seconds for population in populations])
        for device in (DEVICE, less)
    )
    assert (after >= before * (1 - 1e-9)).all()
    assert (after > before * 1.001).any()


def test_multiply_adds_take_as_long_as_those_of_their_type() -> None:
    def compute_s(**rates: float) -> float:
        profile = replace(DEVICE.speeds, multiply_adds=rates)
        return _quantities(replace(DEVICE, profile=profile))["compute_s"]

    assert compute_s(float32=0.25) > 2 * compute_s(float32=2.0)
    assert compute_s(float32=2.0, int8=0.1) == compute_s(float32=2.0)


def test_rows_a_page_apart_evict_each_other() -> None:
    """128 rows of a line each: all in one set where they are 4096 bytes apart, each in its own at 4160."""
    nearby, far = (
        estimate(gather([_columns(width)]), DEVICE).quantities["l2_traffic"][0] for width in (1040, 1024)
    )
    assert far > 2 * nearby


def _columns(width: int) -> Program:
    """Sixteen columns of b at a time, for all rows of a: b's rows are 4 * width bytes apart."""
    sketch = sketch_of(dags.matmul(n=64, m=width, k=128), "tile matmul SSRSRS")
    tiling = ((1, 8, 1, 8), (width // 16, 1, 1, 16), (1, 128))
    factors = dict(zip("ijk", tiling, strict=True))
    return program_of(sketch, matmul=factors | {"unroll": 0, "read a": "direct", "read b": "direct"})


def test_lanes_of_several_groups_are_gathered() -> None:
    """Eight lanes read one value of a together: a vector of eight reads it once, one of sixteen can't."""
    graph = dag(
        {"a": (64, 4), "b": (32, 32)},
        [node("grouped", {"i": 64, "j": 32}, ["a[i, j//8]", "b[k, j]"], reduction={"k": 32}, flops=2.0)],
    )
    found = []
    for lanes in (8, 16):
        tiling = {"i": (8, 1, 1, 8), "j": (32 // lanes, 1, 1, lanes), "k": (1, 32)}
        settings = tiling | {"unroll": 0, "read a": "direct", "read b": "direct"}
        program = program_of(sketch_of(graph, "tile grouped SSRSRS"), grouped=settings)
        found.append(estimate(gather([program]), DEVICE).quantities["loads_per_fma"][0])
    assert found[1] > 4 * found[0]


def _quantities(device: Device) -> dict[str, float]:
    """The quantities of GOOD: tiles of 8 x 32 results, the reduction inside, 8 x 2 tiles in parallel."""
    found = estimate(gather([_matmul(GOOD)]), device).quantities
    return {name: float(values[0]) for name, values in found.items()}


@pytest.mark.parametrize(("registers", "vectors"), [(19, 2), (18, 8 * 2)])
def test_each_row_loads_its_vectors_where_registers_are_missing(registers: int, vectors: int) -> None:
    """16 accumulators, the two vectors of a row and a scalar need 19 registers."""
    profile = replace(DEVICE.speeds, registers=registers)
    found = _quantities(replace(DEVICE, profile=profile))
    assert found["loads_per_fma"] == (8 + vectors) / 16
    assert found["spills"] == 0


def test_the_quantities_of_a_program_equal_values_by_hand() -> None:
    found = _quantities(DEVICE)
    assert found["vector_width"] == 32
    assert found["accumulators"] == 8 * 2
    # Per step 8 scalars of a, 2 vectors of b.
    assert found["loads_per_fma"] == (8 + 2) / 16
    assert found["spills"] == 0
    assert found["inner_reduction"] == 64
    assert found["chunks"] == 16
    assert found["balance"] == 1
    # Inside the parallel loops: 8 rows of a, a half of b, which is two lines a row, and of the result.
    assert found["footprint_1"] == 8 * 64 * 4 + 64 * 32 * 4 + 8 * 32 * 4


@pytest.mark.parametrize(
    ("key", "settings", "loops"),
    [
        pytest.param("tile matmul SSRSRS", {"i": (8, 1, 1, 4), "j": (2, 1, 1, 24)}, 1, id="a tile"),
        pytest.param(
            "tile matmul SSRSRS", {"i": (1, 8, 1, 4), "j": (1, 2, 1, 24)}, 0, id="a tile of one chunk"
        ),
        pytest.param("nest matmul rfactor outer", {"parallel": 0}, 1, id="partial results"),
        pytest.param("nest matmul rfactor outer", {"parallel": 1}, 2, id="partial results, and their sums"),
        pytest.param("nest matmul rfactor inner", {"parallel": 1}, 1, id="vectors of partial results"),
    ],
)
def test_every_parallel_loop_starts_the_threads_once(
    key: str, settings: dict[str, object], loops: int
) -> None:
    graph = dags.matmul() if "tile" in key else dags.matmul(8, 8, 64)
    programs = gather([program_of(sketch_of(graph, key), matmul=settings)])
    slower = replace(FITTED, launch=FITTED.launch + 1)
    started = estimate(programs, DEVICE, slower).seconds - estimate(programs, DEVICE).seconds
    assert started == pytest.approx(loops * DEVICE.speeds.launch_s)


@pytest.mark.parametrize(
    ("unroll", "of_data"),
    [
        pytest.param(0, 2.0, id="a loop over steps of two rows"),
        # Six steps read four rows of two vectors: two tiles of channels, three rows of the kernel.
        pytest.param(64, 8 / 6, id="one body"),
    ],
)
def test_neighbouring_tiles_of_one_unrolled_body_share_what_they_read(unroll: int, of_data: float) -> None:
    sketch = sketch_of(dags.depthwise(), "nest pad; tile depthwise SSRSRS, clip at 1; fuse clip")
    space = {"i": (7, 1, 1, 2), "j": (14, 1, 1, 1), "c": (1, 1, 2, 16)}
    kernel = {"di": (1, 3), "dj": (3, 1)}
    settings = space | kernel | {"unroll": unroll, "read weight": "3"}
    program = program_of(sketch, pad={"location": "1"}, depthwise=settings)
    found = estimate(gather([program]), DEVICE).quantities
    of_weights = 1.0
    assert found["accumulators"] == 2
    assert found["loads_per_fma"] == pytest.approx((of_data + of_weights) / 2)


@pytest.mark.parametrize(
    ("location", "of_turned"),
    [
        pytest.param("3", 2.0, id="copied into rows of two vectors"),
        pytest.param("inline", 2.0 * 32, id="gathered, lane by lane"),
    ],
)
def test_an_inlined_transposition_is_gathered(location: str, of_turned: float) -> None:
    graph = dag(
        {"a": (64, 64), "b": (64, 64)},
        [
            node("turned", {"k": 64, "j": 64}, ["b[j, k]"]),
            node("matmul", {"i": 64, "j": 64}, ["a[i, k]", "turned[k, j]"], reduction={"k": 64}, flops=2.0),
        ],
    )
    factors = dict(zip("ijk", GOOD, strict=True))
    program = program_of(
        sketch_of(graph, "nest turned; tile matmul SSRSRS"),
        turned={"location": location},
        matmul=factors | {"unroll": 0, "read a": "direct"},
    )
    found = estimate(gather([program]), DEVICE).quantities
    of_a = 8.0
    assert found["loads_per_fma"] == pytest.approx((of_a + of_turned) / 16)


def test_chunks_that_the_cores_do_not_divide_are_unbalanced() -> None:
    assert _quantities(replace(DEVICE, cores=3))["balance"] == pytest.approx(16 / 18)
    assert _quantities(replace(DEVICE, cores=32))["balance"] == pytest.approx(16 / 32)


def test_narrow_vectors_need_more_registers() -> None:
    found = _quantities(replace(DEVICE, vector_bytes=16))
    assert found["accumulators"] == 8 * 8
    assert found["spills"] > 0


def _flat_body(rows: int, steps: int, device: Device) -> dict[str, Any]:
    """Return the quantities of a matmul whose unrolled body has `rows` tiles of two vectors, `steps` each."""
    lanes = device.lanes(4)
    sketch = sketch_of(dags.matmul(n=112, m=64, k=64), "tile matmul SSRSRS")
    factors = {"i": (1, 112 // rows, rows, 1), "j": (1, 32 // lanes, 1, 2 * lanes), "k": (64 // steps, steps)}
    settings = factors | {"unroll": 512, "read a": "direct", "read b": "direct"}
    return dict(estimate(gather([program_of(sketch, matmul=settings)]), device).quantities)


AVX2 = replace(DEVICE, vector_bytes=32, profile=replace(DEVICE.speeds, registers=16, loads=2.0))


@pytest.mark.parametrize(("rows", "of_latency"), [(1, 1.0), (2, 0.5)])
def test_sums_of_an_unrolled_body_wait_for_their_previous_iteration(rows: int, of_latency: float) -> None:
    """Each step of a tile adds to two sums. A sum is added to again after the other rows of the body, however
    many instructions the reorder buffer holds."""
    profile = replace(AVX2.speeds, latency_cycles=1000.0)
    found = _flat_body(rows, 2, replace(AVX2, profile=profile))
    steps = 112 * 32 // AVX2.lanes(4) * 64
    assert found["cycles"] / steps == pytest.approx(1000.0 * of_latency, rel=0.01)


@pytest.mark.parametrize(("steps", "tiles"), [(4, 6.0), (16, 1.5), (32, 1.0)])
def test_chains_of_neighbouring_tiles_overlap_if_a_scheduler_holds_them(steps: int, tiles: float) -> None:
    """Tiles of two rows of two vectors, without unrolled loops around. A tile has `steps` multiply-adds for
    each of its four sums, and the scheduler holds 96."""
    profile = replace(AVX2.speeds, latency_cycles=1000.0)
    lanes = AVX2.lanes(4)
    sketch = sketch_of(dags.matmul(n=112, m=64, k=64), "tile matmul SSRSRS")
    factors = {"i": (1, 1, 56, 2), "j": (1, 32 // lanes, 1, 2 * lanes), "k": (64 // steps, steps)}
    settings = factors | {"unroll": 0, "read a": "direct", "read b": "direct"}
    device, wide = replace(AVX2, profile=profile), replace(FITTED, window=10_000.0)
    found = estimate(gather([program_of(sketch, matmul=settings)]), device, wide).quantities
    waiting = 1000.0 + FORWARD_CYCLES / steps
    assert found["cycles"][0] / (56 * 32 // lanes * 64) == pytest.approx(waiting / tiles, rel=0.02)


@pytest.mark.parametrize(
    ("rows", "steps", "of_vectors"),
    [
        pytest.param(4, 2, 2 / 4, id="the vectors of two steps fit"),
        # 14 sums, a scalar, and one register for 2 * 2 or 2 * 4 vectors.
        pytest.param(7, 2, 2 * (1 / 7 + 3 / 4), id="three of four vectors lack registers"),
        pytest.param(7, 4, 2.0, id="all eight vectors lack registers"),
    ],
)
def test_tiles_of_an_unrolled_body_load_vectors_again_that_lack_registers(
    rows: int, steps: int, of_vectors: float
) -> None:
    of_scalars = 1.0
    assert _flat_body(rows, steps, AVX2)["loads_per_fma"] == pytest.approx((of_scalars + of_vectors) / 2)


@pytest.mark.parametrize(("registers", "waiting"), [(17, 0.0), (16, FORWARD_CYCLES)])
def test_sums_without_registers_wait_for_their_store(registers: int, waiting: float) -> None:
    """A body of one step needs 14 sums, two vectors and a scalar."""
    profile = replace(AVX2.speeds, registers=registers, latency_cycles=1000.0)
    found = _flat_body(7, 1, replace(AVX2, profile=profile))
    steps = 112 * 32 // AVX2.lanes(4) * 64
    assert found["cycles"] / steps == pytest.approx((1000.0 + waiting) / 7, abs=0.5)
    assert found["loads_per_fma"] == pytest.approx((1 + 2 / 7) / 2)


@pytest.mark.parametrize(("lanes", "vector"), [(16, 16), (32, 1)])
def test_a_reduction_has_vectors_only_if_they_divide_its_loop(lanes: int, vector: int) -> None:
    graph = dag({"a": (56, 48)}, [node("mean", {"c": 48}, ["a[k, c]"], reduction={"k": 56}, flops=1.0)])
    program = program_of(sketch_of(graph, "nest mean"), mean={"vector": lanes, "parallel": 1})
    assert estimate(gather([program]), DEVICE).quantities["nest_0_vector"] == vector


@pytest.mark.parametrize(
    ("operand", "parallel", "is_scalar"),
    [
        pytest.param("scale[c]", 2, True, id="an operand that repeats along the fused loop"),
        pytest.param("scale[c]", 1, False, id="a loop over channels"),
        pytest.param("other[i, c]", 2, False, id="operands that move along the fused loop"),
        pytest.param("one[0]", 2, False, id="one element for all"),
    ],
)
def test_a_fused_parallel_loop_is_not_vectorized_if_an_index_has_a_remainder(
    operand: str, parallel: int, is_scalar: bool
) -> None:
    shapes = {"a": (64, 48), "scale": (48,), "other": (64, 48), "one": (1,)}
    graph = dag(
        {name: shapes[name] for name in ("a", operand.partition("[")[0])},
        [node("multiply", {"i": 64, "c": 48}, ["a[i, c]", operand], flops=100.0)],
    )
    sketch = sketch_of(graph, "nest multiply")

    def seconds(vector: int) -> float:
        program = program_of(sketch, multiply={"vector": vector, "parallel": parallel, "unroll": 0})
        return float(estimate(gather([program]), replace(DEVICE, cores=1)).seconds[0])

    assert (seconds(1) > 4 * seconds(16)) == is_scalar


def test_transforms_share_their_inner_sums() -> None:
    """An iteration adds a product with a sum of four terms, which the results of all rows share."""
    device = replace(DEVICE, cores=1, profile=replace(DEVICE.speeds, launch_s=1e-15))

    def seconds_of_a_result(rows: int) -> float:
        terms = [term for k in range(4) for term in (f"tile[r, {k}, p, c]", f"A[{k}, v]")]
        transform = node(
            "transform",
            {"e": rows, "v": 4, "p": 16, "c": 64},
            ["A[r, e]", *terms],
            reduction={"r": 4},
            flops=9.0,
            constant_axes=("e", "v", "r"),
        )
        graph = dag({"tile": (4, 4, 16, 64), "A": (4, 4)}, [transform])
        (sketch,) = (one for one in generate(graph, device) if one.of_kind(StageKind.UNROLLED))
        return float(estimate(gather([middling(sketch)]), device).seconds[0]) / rows

    assert seconds_of_a_result(2) / seconds_of_a_result(4) == pytest.approx(
        (1 + 4 / 2) / (1 + 4 / 4), rel=1e-3
    )
