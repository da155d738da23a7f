"""Compare both engines on layers to which the estimate wasn't fitted, on several device classes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.engines import metaschedule_search
from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.layers import LAYERS
from benchmarks.operators.figures import quality, quality_figures, time_to_match
from benchmarks.operators.run import OURS, THEIRS
from benchmarks.results.figures import Figure, at_least, figure, mean_figure
from benchmarks.results.metrics import NEVER_REACHED, SPEED_UP, TUNING_SPEED_UP, after_trials, to_reach
from benchmarks.results.sidecar import Sidecar
from benchmarks.timing.finals import SearchResult, Trials, milestones_up_to, time_best_programs
from benchmarks.timing.measurer import ProgramMeasurer
from core.device import Device

AFTER = (1, 8, 16)
TRIALS = 64
# The aim of MetaSchedule's latency divided by ours after TRIALS of each.
QUALITY = at_least(1.1)
# The aim of MetaSchedule's seconds for all of its trials divided by ours until as fast.
SOONER = at_least(20)


@dataclass(frozen=True)
class LayerResult:
    """Both engines' searches of one layer on one device class."""

    layer: str
    device_class: str
    ours: SearchResult
    theirs: SearchResult


RESULTS = Sidecar(LayerResult, "layers")


def run(name: str, device_class: str, device: Device, trials: int, rounds: int, seed: int) -> LayerResult:
    """Search a layer with both engines and time their best programs in turns.

    Needs its own process, with TVM_NUM_THREADS in the environment. Raises UnsupportedSubgraph.
    """
    module = LAYERS[name].module()
    measurer = ProgramMeasurer(module, device)
    ours = TunefarmSearch(module, device).tune(trials, measurer.timed, np.random.default_rng(seed))
    errors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
        theirs = metaschedule_search.tune(module, device, trials, seed, Path(folder))
    if theirs.error:
        errors.append(f"MetaSchedule ended early: {theirs.error}")
    after = milestones_up_to(trials, AFTER)
    tried = {OURS: Trials(ours.trials, after), THEIRS: Trials(theirs.trials, after)}
    label = f"{name} on {device_class}"
    results = time_best_programs(measurer, label, tried, rounds, errors)
    for error in errors:
        print(f"  {label}: {error}", flush=True)
    return LayerResult(name, device_class, results[OURS], results[THEIRS])


def figures_of(results: Sequence[LayerResult], trials: int) -> list[Figure]:
    """Return the means over each device class first, then the figures of every layer."""
    figures = []
    for name in dict.fromkeys(result.device_class for result in results):
        of_class = [result for result in results if result.device_class == name]
        figures += _means(name, of_class, trials)
    after = milestones_up_to(trials, AFTER)
    for each in results:
        figures += quality_figures(each, each.layer, after, device_class=each.device_class)
    return figures


def _means(device_class: str, results: Sequence[LayerResult], trials: int) -> list[Figure]:
    figures = []
    for count in milestones_up_to(trials, AFTER):
        medians = {result.layer: quality(result, count) for result in results}
        figures += mean_figure(
            SPEED_UP,
            {layer: median.value if median else None for layer, median in medians.items()},
            "x",
            of="layers",
            aim=QUALITY if count == TRIALS else None,
            peer=THEIRS,
            condition=after_trials(count),
            device_class=device_class,
        )
    times = {result.layer: time_to_match(result, result.ours, trials) for result in results}
    figures += mean_figure(
        TUNING_SPEED_UP,
        {key: time.ratio if time else None for key, time in times.items()},
        "x",
        of="layers",
        aim=SOONER,
        peer=THEIRS,
        condition=to_reach(trials),
        device_class=device_class,
    )
    never = [layer for layer, time in times.items() if time is None]
    exceptions = figure(
        NEVER_REACHED,
        len(never),
        f"of {len(results)}",
        device_class=device_class,
        count=len(results),
        note=", ".join(never),
    )
    return [*figures, exceptions]
