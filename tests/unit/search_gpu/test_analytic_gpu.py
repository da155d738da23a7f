from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.cost.analytic import estimate
from search.cost.features import NUM_FEATURES, extract
from search.cost.model import CostModel
from search.dag import Dag
from search.policy import TuneContext, propose
from search.programs.annotate import sample
from search.programs.program import Program, gather
from search.rules.space import generate
from search.sketches.sketch import Sketch
from tests.choices import choose
from tests.devices import GPU
from tests.unit.search import dags

SKETCHES = [sketch for make in dags.DAGS.values() for sketch in generate(make(), GPU)]


@given(st.sampled_from(SKETCHES), st.integers(0, 2**32 - 1))
def test_every_program_has_an_estimate_and_features(sketch: Sketch, seed: int) -> None:
    population = sample(sketch, 8, np.random.default_rng(seed))
    guess = estimate(population, GPU)
    assert np.isfinite(guess.seconds).all()
    assert (guess.seconds > 0).all()
    features = extract(sketch.dag, guess)
    assert features.shape == (len(population), NUM_FEATURES)
    assert not np.isinf(features).any()


def matmul(
    rows: tuple[int, ...], columns: tuple[int, ...], summed: tuple[int, ...], lanes: int = 0, stages: int = 0
) -> float:
    (sketch,) = generate(dags.matmul(1024, 1024, 1024), GPU)
    program = Program(sketch, (*rows, *columns, *summed, 0, stages, lanes, lanes))
    return float(estimate(gather([program]), GPU).seconds[0])


GOOD = ((16, 1, 16, 2, 2), (16, 1, 16, 2, 2), (128, 2, 4))


def test_tiles_in_registers_save_loads() -> None:
    assert matmul(*GOOD) < matmul((64, 1, 16, 1, 1), (64, 1, 16, 1, 1), (128, 2, 4)) / 2


def test_few_threads_leave_the_device_idle() -> None:
    assert matmul(*GOOD) < matmul((256, 1, 4, 1, 1), (16, 1, 8, 2, 4), (128, 2, 4)) / 2


def test_wide_fetches_cost_less_than_single_ones() -> None:
    assert matmul(*GOOD, lanes=2) < matmul(*GOOD, lanes=0)


def test_fetching_ahead_hides_latency() -> None:
    assert matmul(*GOOD, stages=1) < matmul(*GOOD)


def padded_convolution(unroll: int, lanes: int, columns: tuple[int, ...] = (4, 1, 8, 1, 4)) -> float:
    """Estimate a convolution of 56 x 56 pixels. A block of 56 threads fetches 9 x 6 x 64 values of the padded
    operand, and 9 x 64 x 32 of the weights."""
    (sketch,) = generate(dags.conv2d(size=56, inputs=64, outputs=128), GPU)
    rows, pixels = (8, 1, 7, 1, 1), (14, 1, 1, 1, 4)
    program = Program(sketch, (*rows, *pixels, *columns, 1, 1, 3, 1, 3, 1, 4, 16, 1, unroll, 0, lanes, 0))
    return float(estimate(gather([program]), GPU).seconds[0])


def test_a_padded_operand_is_fetched_value_by_value() -> None:
    narrow, wide = (padded_convolution(unroll=1, lanes=lanes) for lanes in (0, 2))
    assert wide == pytest.approx(narrow)


def test_an_operand_with_more_loads_than_are_unrolled_waits_for_each() -> None:
    assert padded_convolution(unroll=2, lanes=0) > 1.5 * padded_convolution(unroll=3, lanes=0)


def test_sums_in_a_loop_that_is_not_unrolled_are_in_local_memory() -> None:
    inner, outer = (4, 1, 8, 1, 4), (4, 1, 8, 4, 1)
    assert padded_convolution(1, 0, outer) > 1.1 * padded_convolution(1, 0, inner)


def test_one_kernel_for_a_row_is_faster_than_three() -> None:
    sketches = generate(dags.softmax(256, 256), GPU)
    rng = np.random.default_rng(0)
    best = [estimate(sample(sketch, 256, rng), GPU).seconds.min() for sketch in sketches]
    assert int(np.argmin(best)) == 0


def test_the_search_proposes_programs_for_a_gpu() -> None:
    graph = dags.conv2d()
    task = TuneContext(graph, generate(graph, GPU), GPU)
    proposals = propose(task, CostModel(), [], 8, np.random.default_rng(0))
    assert len(proposals) == 8


def test_one_kernel_for_an_attention_is_faster_than_three() -> None:
    fused, online, *others = generate(dags.joined_attention(12, 128, 64), GPU)
    assert ["attended" in sketch.key for sketch in (online, *others)] == [True, *[False] * len(others)]
    rng = np.random.default_rng(0)
    for kernel in (fused, online):
        best = estimate(sample(kernel, 64, rng), GPU).seconds.min()
        assert best < min(estimate(sample(other, 64, rng), GPU).seconds.min() for other in others)


def test_an_attention_is_faster_on_tensor_cores() -> None:
    assert GPU.gpu is not None
    gpu = replace(GPU, gpu=replace(GPU.gpu, dynamic_shared_bytes=160 << 10))
    sketches = [
        one for one in generate(dags.attention_of_halves(12, 384, 64), gpu) if "online" not in one.key
    ]
    assert "attention on tensor cores" in sketches[1].key
    rng = np.random.default_rng(0)
    first, on_tensor_cores, *others = (
        estimate(sample(sketch, 256, rng), gpu).seconds.min() for sketch in sketches
    )
    assert on_tensor_cores < min(first, *others)


def test_an_attention_on_tensor_cores_keeps_its_scores_in_shared_memory() -> None:
    sketch = generate(dags.attention_of_halves(2, 128, 16), GPU)[1]
    population = sample(sketch, 256, np.random.default_rng(0))
    queries = 16 * population.chosen("joined", "warps i") * population.chosen("joined", "fragments i")
    # Scores and weights of 128 keys: 768 bytes for each query, in 48 KiB.
    assert set(queries) == {16, 32}


def test_an_attentions_block_keeps_its_scores_in_shared_memory() -> None:
    sketch = generate(dags.joined_attention(2, 512, 8), GPU)[0]
    population = sample(sketch, 64, np.random.default_rng(0))
    rows = population.chosen("joined", "warps") * population.chosen("joined", "queries")
    # Scores and weights of 512 keys: 4 KiB for each query, in 48 KiB.
    assert set(rows) == {1, 2, 4, 8}


def _best_by_kernel(graph: Dag) -> dict[str, float]:
    """Return the least seconds of an attention on an H100, by the last stage."""
    assert GPU.gpu is not None
    gpu = replace(GPU, gpu=replace(GPU.gpu, dynamic_shared_bytes=227 << 10, resident_shared_bytes=228 << 10))
    rng = np.random.default_rng(0)
    found: dict[str, float] = {}
    for sketch in generate(graph, gpu):
        last = str(sketch.stages[-1]) if "attended" in sketch.key else "several kernels"
        seconds = float(estimate(sample(sketch, 256, rng), gpu).seconds.min(initial=np.inf))
        found[last] = min(seconds, found.get(last, np.inf))
    return found


def test_scores_in_registers_are_faster_than_scores_in_shared_memory() -> None:
    best = _best_by_kernel(dags.attention_of_halves(12, 384, 64))
    online = best.pop("attention with an online softmax joined")
    assert online < min(best.values())
    # Not by more than the memory and the work that it saves.
    assert online > 0.2 * best["attention on tensor cores joined"]


@pytest.mark.parametrize("make", [dags.attention_of_halves, dags.attention_in_tf32])
def test_an_online_softmax_of_many_keys_is_faster_than_several_kernels(make: Callable[..., Dag]) -> None:
    best = _best_by_kernel(make(12, 4096, 64))
    online = best["attention with an online softmax joined"]
    assert 0.05 * best["several kernels"] < online < 0.7 * best["several kernels"]


def test_float32_with_an_online_softmax_is_bound_by_its_products() -> None:
    best = _best_by_kernel(dags.joined_attention(12, 4096, 64))
    online = best["attention with an online softmax joined"]
    assert online < best["several kernels"]
    in_halves = _best_by_kernel(dags.attention_of_halves(12, 4096, 64))
    assert online > 3 * in_halves["attention with an online softmax joined"]


def test_lanes_with_more_queries_load_less_in_float32() -> None:
    (sketch,) = (s for s in generate(dags.joined_attention(12, 4096, 64), GPU) if "online" in s.key)
    one, two = (
        choose(sketch, {"warps": 4, "fragments i": rows, "fragments j": 2, "stages": 1, "parts": 1})
        for rows in (1, 2)
    )
    seconds = estimate(gather([one, two]), GPU).seconds
    assert seconds[1] < 0.9 * seconds[0]


def test_warps_share_few_queries_of_many_keys() -> None:
    (sketch,) = (s for s in generate(dags.joined_attention(12, 4096, 64), GPU) if "online" in s.key)
    population = sample(sketch, 512, np.random.default_rng(0))
    warps, parts = (population.chosen("joined", kind) for kind in ("warps", "parts"))
    assert set(parts) > {1}
    assert not (warps % parts).any()
    graph = dags.joined_attention(12, 4096, 64, queries=16)
    (sketch,) = (s for s in generate(graph, GPU) if "online" in s.key)
    alone, shared = (
        choose(sketch, {"warps": parts, "fragments i": 1, "fragments j": 1, "stages": 1, "parts": parts})
        for parts in (1, 4)
    )
    seconds = estimate(gather([alone, shared]), GPU).seconds
    assert seconds[1] < 0.5 * seconds[0]


def test_an_online_softmax_keeps_to_registers_and_shared_memory() -> None:
    sketch = next(one for one in generate(dags.attention_of_halves(2, 512, 128), GPU) if "online" in one.key)
    population = sample(sketch, 512, np.random.default_rng(0))
    rows, columns = (population.chosen("joined", f"fragments {part}") for part in "ij")
    # 8 registers for 16 columns of scores or results, and 56 others.
    assert (8 * rows * (columns + 8) + 56).max() <= 255
    warps, stages, parts = (population.chosen("joined", kind) for kind in ("warps", "stages", "parts"))
    queries = 16 * warps // parts * rows
    exchanged = (parts > 1) * 4 * 32 * warps * rows * (8 * 8 + 4)
    assert (2 * (128 + 8) * (queries + 2 * stages * parts * 16 * columns) + exchanged).max() <= 48 << 10
    assert len(population) > 16
