"""What was measured of one network, as figures."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.engines.metaschedule import TrialRate
from benchmarks.networks.network import EXPORTED, ONNXRUNTIME, SEEDS, TUNED, UNTUNED, Measured
from benchmarks.results.figures import Aim, Figure, at_least, at_most, figure, number
from benchmarks.timing import agreement
from benchmarks.timing.interleaved import Median


@dataclass(frozen=True)
class Aims:
    """What a network should reach: factors, and trials a second from start to finish.

    `of_artifact` is for the exported database: the same schedules, so the same speed but for noise.
    """

    speedup: Aim | None = None
    of_onnxruntime: Aim | None = None
    of_artifact: Aim | None = None
    trials_per_s: Aim | None = None


AIMS: Mapping[str, Aims] = {"resnet18": Aims(at_least(30), at_most(1.5), at_most(1.05), at_least(3))}


def figures_of(measured: Measured) -> list[Figure]:
    """The figures of one network, each under its label."""
    aims = AIMS.get(measured.label, Aims())
    return [*_latencies(measured, aims), *_agreement(measured), *_search(measured, aims), *_times(measured)]


def _latencies(measured: Measured, aims: Aims) -> list[Figure]:
    label, timings = measured.label, measured.timings
    version = importlib.metadata.version("onnxruntime")
    slow = f"{UNTUNED}: {_ms(timings[UNTUNED].latency_s)}"
    fast = f"{ONNXRUNTIME} {version}: {_ms(timings[ONNXRUNTIME].latency_s)}"
    gain = timings[UNTUNED].ratio_to(timings[TUNED])
    behind = timings[TUNED].ratio_to(timings[ONNXRUNTIME])
    same = timings[EXPORTED].ratio_to(timings[TUNED])
    found = [
        figure(
            f"{label}: speed-up over TVM untuned",
            gain.value,
            "x",
            aim=aims.speedup,
            peer=slow,
            spread=gain.spread,
        ),
        figure(
            f"{label}: latency relative to ONNX Runtime",
            behind.value,
            "x",
            aim=aims.of_onnxruntime,
            peer=fast,
            spread=behind.spread,
        ),
        figure(
            f"{label}: exported database in TVM relative to the artifact",
            same.value,
            "x",
            aim=aims.of_artifact,
            peer=f"{TUNED}: {_ms(timings[TUNED].latency_s)}",
            spread=same.spread,
        ),
    ]
    for name, each in timings.items():
        low_s, high_s = each.latency_s.spread
        spread_ms = (low_s * 1e3, high_s * 1e3)
        found.append(figure(f"{label}: latency, {name}", each.latency_s.value * 1e3, "ms", spread=spread_ms))
    return found


def _ms(secs: Median) -> str:
    return f"{number(secs.value * 1e3)} ms"


def _agreement(measured: Measured) -> list[Figure]:
    deviation, label = measured.deviation, measured.label
    peer = f"{ONNXRUNTIME}, {len(SEEDS)} random inputs"
    allowed = f"{peer}; allowed: {agreement.ABSOLUTE:g} + {agreement.RELATIVE:g} |theirs|"
    return [
        figure(
            f"{label}: deviation relative to what is allowed",
            deviation.of_allowed,
            "x",
            aim=at_most(1),
            peer=allowed,
        ),
        figure(f"{label}: absolute deviation", deviation.absolute, "", peer=peer),
        figure(f"{label}: relative deviation", deviation.relative, "", peer=peer),
    ]


def _search(measured: Measured, aims: Aims) -> list[Figure]:
    """Trials a second, from the whole run to the search alone, and MetaSchedule's."""
    label, tuning, rate = measured.label, measured.tuning, measured.peer_rate
    peer = f"MetaSchedule: {number(rate.per_s_over(tuning.job.trials_done))} /s" if rate else None
    rates = [
        figure(
            f"{label}: trials a second from start to finish",
            tuning.trials_per_s,
            "/s",
            aim=aims.trials_per_s,
            peer=peer,
        ),
        figure(f"{label}: trials a second on a running stack", tuning.trials_per_s_started, "/s", peer=peer),
    ]
    if tuning.search_trials_per_s is not None:
        searching = tuning.search_trials_per_s
        rates.append(figure(f"{label}: trials a second while searching", searching, "/s", peer=peer))
    if rate is not None:
        theirs = rate.per_s_over(tuning.job.trials_done)
        ratio = tuning.trials_per_s / theirs
        rates.append(
            figure(f"{label}: trials a second relative to MetaSchedule", ratio, "x", peer=_basis(rate))
        )
        rates.append(figure(f"{label}: trials a second, MetaSchedule", theirs, "/s"))
    return rates


def _basis(rate: TrialRate) -> str:
    failed = f" ({rate.failed} failed)" if rate.failed else ""
    seconds = f"{number(rate.seconds)} s, {number(rate.set_up_s)} s of it set-up"
    return f"MetaSchedule as it would go on after {rate.trials} trials{failed} in {seconds}"


def _times(measured: Measured) -> list[Figure]:
    label, tuning = measured.label, measured.tuning
    found = [
        figure(f"{label}: trials", tuning.job.trials_done, ""),
        figure(f"{label}: from start to finish", tuning.total_s, "s"),
        figure(f"{label}: start of the stack in it", tuning.start_s, "s"),
    ]
    settled = measured.curve().settled()
    if settled is not None:
        found.append(figure(f"{label}: until 10% above the last estimate", settled.at_s, "s"))
    return found
