"""Layers that the estimate was not fitted to, searched by both engines on several device classes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.engines import metaschedule_search
from benchmarks.engines.tunefarm_search import TunefarmSearch
from benchmarks.layers import LAYERS
from benchmarks.operators.figures import quality, time_to_match
from benchmarks.operators.means import mean
from benchmarks.operators.run import OURS, THEIRS
from benchmarks.results.figures import Aim, Figure, at_least, figure, number
from benchmarks.results.searches import Search
from benchmarks.timing.finals import SearchResult, Trials, milestones_up_to, time_best_programs
from benchmarks.timing.measurer import ProgramMeasurer
from core.device import Device

AFTER = (1, 8, 16)
TRIALS = 64
# After as many trials of each, MetaSchedule's best takes so many times as long as ours.
QUALITY = at_least(1.1)
# So many times as long MetaSchedule takes for all of its trials as we take until we are as fast.
SOONER = at_least(20)


@dataclass(frozen=True)
class LayerResult:
    """A layer on a device class, as both engines' searches left it."""

    operator: str
    device_class: str
    ours: SearchResult
    theirs: SearchResult

    @property
    def searches(self) -> tuple[Search, Search]:
        return self.ours.search, self.theirs.search


def run(name: str, device_class: str, device: Device, trials: int, rounds: int, seed: int) -> LayerResult:
    """Wants a process of its own, with TVM_NUM_THREADS in the environment. Raises UnsupportedSubgraph."""
    module = LAYERS[name].module()
    measurer = ProgramMeasurer(module, device)
    ours = TunefarmSearch(module, device).tune(trials, measurer.timed, np.random.default_rng(seed))
    errors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
        theirs = metaschedule_search.tune(module, device, trials, seed, Path(folder))
    if theirs.error:
        errors.append(f"MetaSchedule ended early: {theirs.error}")
    milestones = milestones_up_to(trials, AFTER)
    tried = {OURS: Trials(ours.trials, milestones), THEIRS: Trials(theirs.trials, milestones)}
    label = f"{name} on {device_class}"
    sides = time_best_programs(measurer, label, tried, rounds, errors)
    for error in errors:
        print(f"  {label}: {error}", flush=True)
    return LayerResult(name, device_class, sides[OURS], sides[THEIRS])


def figures_of(found: Sequence[LayerResult], trials: int) -> list[Figure]:
    """The means over each device class first, then every layer."""
    classes = dict.fromkeys(layer.device_class for layer in found)
    of_class = {name: [layer for layer in found if layer.device_class == name] for name in classes}
    return [
        *(each for name, layers in of_class.items() for each in _overall(name, layers, trials)),
        *(each for layer in found for each in _layer(layer, trials)),
    ]


def _overall(device_class: str, layers: Sequence[LayerResult], trials: int) -> list[Figure]:
    ratios = {
        count: {one.operator: quality(one, count) for one in layers}
        for count in milestones_up_to(trials, AFTER)
    }
    times = {one.operator: time_to_match(one, one.ours, trials) for one in layers}
    never = [name for name, time in times.items() if time is None]
    return [
        *(
            each
            for count, medians in ratios.items()
            for each in mean(
                f"{device_class}: MetaSchedule's latency relative to ours after {count} trials",
                {name: median.value if median else None for name, median in medians.items()},
                "x",
                _quality_aim(count),
            )
        ),
        *mean(
            f"{device_class}: MetaSchedule's seconds for {trials} trials relative to ours until as fast",
            {name: time.ratio if time else None for name, time in times.items()},
            "x",
            SOONER,
        ),
        figure(
            f"{device_class}: layers of {len(layers)} that never were as fast",
            len(never),
            "",
            peer=", ".join(never) or None,
        ),
    ]


def _layer(layer: LayerResult, trials: int) -> list[Figure]:
    figures = []
    for count in milestones_up_to(trials, AFTER):
        ratio = quality(layer, count)
        ours, theirs = layer.ours.after(count), layer.theirs.after(count)
        if ratio is None or ours is None or theirs is None:
            continue
        seconds = [side.timings.latency_s.value * 1e3 for side in (theirs, ours)]
        figures.append(
            figure(
                f"{layer.device_class}, {layer.operator}: MetaSchedule's latency relative to ours "
                f"after {count} trials",
                ratio.value,
                "x",
                peer=f"MetaSchedule: {number(seconds[0])} ms, ours: {number(seconds[1])} ms",
                spread=ratio.spread,
            )
        )
    return figures


def _quality_aim(count: int) -> Aim | None:
    return QUALITY if count == TRIALS else None
