"""Search an operator on a GPU with both engines, and time the best programs in turns with PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm import te

from benchmarks.engines import metaschedule_search
from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.gpu.peers import TorchProduct, missing, operator_peer, time_by_events
from benchmarks.operators.figures import quality, quality_figures, time_to_match
from benchmarks.operators.libraries import OURS as OUR_TURN
from benchmarks.operators.libraries import TORCH
from benchmarks.operators.run import OURS, THEIRS
from benchmarks.results.figures import Figure, at_least, figure, mean_figure, number, ratio_figure
from benchmarks.results.metrics import NEVER_REACHED, SPEED_UP, TUNING_SPEED_UP, after_trials, to_reach
from benchmarks.results.searches import Search
from benchmarks.suite import OPERATORS, Shape
from benchmarks.timing.contestants import ProcessContestant
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.finals import (
    ANY_BLOCK,
    REST_S,
    SearchResult,
    Trials,
    best,
    milestones_up_to,
    time_best_programs,
    verified,
)
from benchmarks.timing.interleaved import Block, Contestant, Pair, Timings, measure
from benchmarks.timing.measurer import ProgramMeasurer
from compiler.variants.tf32 import product
from core.device import Device
from core.job import TF32

AFTER = (16, 64)
# Aims: MetaSchedule's latency divided by ours after equal trials, its seconds for all trials divided by ours
# until as fast, and PyTorch's latency divided by ours.
QUALITY, SOONER, LIBRARY = at_least(1.15), at_least(10), at_least(1.0)
# The share of the peak that matrix products on tensor cores reach.
OF_PEAK = at_least(60)
# The library that computes PyTorch's products, its latency divided by ours, and the least side with that aim.
CUBLAS, OF_CUBLAS, LARGE = "cuBLAS", at_least(0.75), 2048
PRODUCTS = (1024, 2048, 4096, 8192)
PRODUCT_TYPES = ("float16", "bfloat16", TF32)


@dataclass(frozen=True)
class Plan:
    """The settings of each operator's searches; `shapes` replace shapes of the suite."""

    device: Device
    trials: int
    threads: int
    rounds: int
    seed: int
    shapes: dict[str, Shape]

    def shape(self, operator: str) -> Shape:
        return self.shapes.get(operator, OPERATORS[operator].benchmark)


@dataclass(frozen=True)
class OperatorResult:
    """The searches of one operator. `library` has our best program and PyTorch's, timed in turns; None if
    PyTorch has none. `errors` lists failures."""

    operator: str
    ours: SearchResult
    theirs: SearchResult
    library: Pair | None
    errors: tuple[str, ...]

    @property
    def searches(self) -> tuple[Search, Search]:
        return self.ours.curve, self.theirs.curve


@dataclass(frozen=True)
class ProductResult:
    """A matrix product of `side` cubed. `cublas` is None without PyTorch, which calls it."""

    dtype: str
    side: int
    ours: Timings
    cublas: Timings | None


def run(operator: str, plan: Plan) -> OperatorResult:
    """Search an operator, and time the best programs. Needs its own process, with TVM_NUM_THREADS in the
    environment. Raises UnsupportedSubgraph."""
    module = OPERATORS[operator].module(plan.shape(operator))
    measurer = ProgramMeasurer(module, plan.device, plan.threads)
    ours = TunefarmSearch(module, plan.device).tune(
        plan.trials, measurer.timed, np.random.default_rng(plan.seed)
    )
    errors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
        theirs = metaschedule_search.tune(
            module, plan.device, plan.trials, plan.seed, Path(folder), plan.threads
        )
    if theirs.error:
        errors.append(f"MetaSchedule ended early: {theirs.error}")
    after = milestones_up_to(plan.trials, AFTER)
    tried = {OURS: Trials(ours.trials, after), THEIRS: Trials(theirs.trials, after)}
    results = time_best_programs(measurer, operator, tried, plan.rounds, errors)
    library = None
    peer = None if missing() else operator_peer(operator, plan.shape(operator))
    finalists = list(verified(measurer, best(ours.trials), errors).values()) if peer else []
    if peer and finalists:
        shapes, model = peer
        inputs = random_inputs([(shape, "float32") for shape in shapes], plan.seed)
        with ProcessContestant(model, plan.threads, inputs, time_by_events) as pytorch:
            timings = measure({OUR_TURN: finalists[0], TORCH: pytorch}, plan.rounds, Block(min_s=0.05))
        library = Pair(timings[OUR_TURN], timings[TORCH])
    return OperatorResult(operator, results[OURS], results[THEIRS], library, tuple(errors))


def run_product(dtype: str, side: int, plan: Plan) -> ProductResult:
    """Search a matrix product, and time the best program in turns with cuBLAS. Needs its own process, as
    `run` does.

    Raises RuntimeError when no program works.
    """
    module = _product(dtype, side)
    measurer = ProgramMeasurer(module, plan.device, plan.threads)
    found = TunefarmSearch(module, plan.device).tune(
        plan.trials, measurer.timed, np.random.default_rng(plan.seed)
    )
    errors: list[str] = []
    finalists = list(verified(measurer, best(found.trials), errors).values())
    if not finalists:
        raise RuntimeError("; ".join(errors) or "no program works")
    with ExitStack() as processes:
        contestants: dict[str, Contestant] = {OUR_TURN: finalists[0]}
        if not missing():
            contestants[CUBLAS] = processes.enter_context(
                ProcessContestant(TorchProduct(dtype, side), plan.threads, [], time_by_events)
            )
        timings = measure(contestants, plan.rounds, ANY_BLOCK, rest_s=REST_S)
    return ProductResult(dtype, side, timings[OUR_TURN], timings.get(CUBLAS))


def _product(dtype: str, side: int) -> tvm.IRModule:
    if dtype != TF32:
        return OPERATORS["GMM"].module((side, side, side), dtype=dtype)
    left, right = (te.placeholder((side, side), name=name) for name in "AB")
    function = te.create_prim_func([left, right, product(left, right)])
    return tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})


def product_figures(result: ProductResult, device: Device) -> list[Figure]:
    """Return the speed of a product as a share of the calibrated peak, and relative to cuBLAS if it was
    timed."""
    speeds, dtype = device.speeds, result.dtype
    stored, item_bytes = ("float32", 4) if dtype == TF32 else (dtype, 2)
    lanes = device.vector_bytes / item_bytes
    peak = 2 * speeds.issue(f"tensor{stored}") * lanes * speeds.hertz * device.cores
    flops = 2 * result.side**3 / result.ours.latency_s.value
    subject = f"{dtype} matrix product of {result.side}"
    note = f"{number(flops / 1e12)} of {number(peak / 1e12)} TFLOP/s"
    share = 100 * flops / peak
    found = [figure("share of the measured peak", share, "%", subject=subject, aim=OF_PEAK, note=note)]
    if result.cublas is not None:
        ours_us, theirs_us = (one.latency_s.value * 1e6 for one in (result.ours, result.cublas))
        note = f"{CUBLAS}: {number(theirs_us)} us, ours: {number(ours_us)} us"
        aim = OF_CUBLAS if result.side >= LARGE else None
        ratio = result.cublas.ratio_to(result.ours)
        found.append(ratio_figure(SPEED_UP, ratio, CUBLAS, subject, aim=aim, note=note))
    return found


def figures_of(results: Sequence[OperatorResult], trials: int) -> list[Figure]:
    """Return the means first, then the figures of every operator."""
    libraries = {each.operator: _library_ratio(each) for each in results}
    found = mean_figure(SPEED_UP, libraries, "x", aim=LIBRARY, peer=TORCH, condition=after_trials(trials))
    qualities = {each.operator: quality(each, trials) for each in results}
    ratios = {name: median.value if median else None for name, median in qualities.items()}
    found += mean_figure(SPEED_UP, ratios, "x", aim=QUALITY, peer=THEIRS, condition=after_trials(trials))
    times = {each.operator: time_to_match(each, each.ours, trials) for each in results}
    sooner = {name: time.ratio if time else None for name, time in times.items()}
    found += mean_figure(TUNING_SPEED_UP, sooner, "x", aim=SOONER, peer=THEIRS, condition=to_reach(trials))
    never = [name for name, time in times.items() if time is None]
    if results:
        unit = f"of {len(results)}"
        found.append(figure(NEVER_REACHED, len(never), unit, count=len(results), note=", ".join(never)))
    return found + [one for each in results for one in _figures_of_operator(each, trials)]


def _figures_of_operator(result: OperatorResult, trials: int) -> list[Figure]:
    figures = quality_figures(result, result.operator, milestones_up_to(trials, AFTER))
    if (pair := result.library) is not None:
        own_us, other_us = (side.latency_s.value * 1e6 for side in (pair.ours, pair.theirs))
        note = f"{TORCH}: {number(other_us)} us, ours: {number(own_us)} us"
        ratio = pair.theirs.ratio_to(pair.ours)
        figures.append(ratio_figure(SPEED_UP, ratio, TORCH, result.operator, note=note))
    return figures


def _library_ratio(result: OperatorResult) -> float | None:
    pair = result.library
    return pair.theirs.ratio_to(pair.ours).value if pair else None
