"""Figures of whole networks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.networks.compiled import AFTER, AT_ONCE, CompiledNetwork
from benchmarks.networks.disturbed import DisturbedNetwork
from benchmarks.networks.limits import parts_of
from benchmarks.networks.peers import METASCHEDULE, ONNXRUNTIME, Peer
from benchmarks.networks.plan import EXPORTED, SEEDS, TUNED, UNTUNED
from benchmarks.networks.session import Tuning
from benchmarks.networks.tuned import TunedNetwork
from benchmarks.results.figures import (
    Aim,
    Figure,
    at_least,
    at_most,
    figure,
    mean_figure,
    number,
    ratio_figure,
)
from benchmarks.results.metrics import (
    AFTER_BUSY,
    ALL_SUBGRAPHS,
    BANDWIDTH,
    BESIDE_BUSY,
    FASTEST_PEER,
    LATENCY,
    MACHINE_LIMIT,
    ONE_TRIAL,
    PEAK,
    SPEED_UP,
    TIME_TO_ARTIFACT,
    TOTAL_TIME,
    TRIALS,
    TRIALS_A_SECOND,
    WITHOUT_TRIALS,
)
from benchmarks.timing.deviation import ABSOLUTE, RELATIVE, Deviation
from benchmarks.timing.interleaved import Timings
from core.model_latency import network_s


@dataclass(frozen=True)
class Aims:
    """Aims for a network: ratios, and trials a second from start to finish.

    `of_fastest` bounds the ratio of the fastest peer's latency. `of_artifact` bounds the exported database's
    latency relative to the artifact, which has the same schedules.
    """

    speedup: Aim | None = None
    of_fastest: Aim | None = None
    of_artifact: Aim | None = None
    trials_per_s: Aim | None = None


CONVOLUTIONAL = Aims(of_fastest=at_most(1.0), trials_per_s=at_least(4))
# Networks for which Winograd's convolution saves most multiplications.
FILTERED = at_most(0.77)
AIMS: Mapping[str, Aims] = {
    "resnet18": Aims(at_least(30), FILTERED, at_most(1.05), at_least(4)),
    "resnet3d_18": Aims(of_fastest=FILTERED, trials_per_s=at_least(4)),
    **dict.fromkeys(("resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_t", "dcgan"), CONVOLUTIONAL),
    **dict.fromkeys(("bert_base", "vit_b16", "gpt2"), Aims(of_fastest=at_most(1.0))),
}
# The largest allowed difference of a published latency from the latency in a user's process, in percent.
PUBLISHED_PERCENT = at_most(3)
# A model takes at most this multiple of the time of its kernels, timed one by one.
OF_KERNELS = at_most(1.05)
PUBLISHED = "published latency"
# The number of subgraphs that are listed, those that lose most relative to the machine's limits.
FARTHEST = 5
AT_ONCE_MEAN, AFTER_MEAN, TUNED_MEAN = at_most(1.5), at_most(1.25), at_most(0.83)


def figures_of_tuned(networks: Sequence[TunedNetwork]) -> list[Figure]:
    """Return the figures of each tuned network, and of all networks together."""
    found = [each for network in networks for each in _figures_of_tuned(network)]
    if len(networks) > 1:
        ratios = {
            one.label: one.timings[TUNED].ratio_to(one.timings[_fastest(one).name]).value for one in networks
        }
        found += mean_figure(LATENCY, ratios, "x", of="networks", aim=TUNED_MEAN, peer=FASTEST_PEER)
    return found + _published_latencies([(one.tuning, one.alone) for one in networks])


def figures_of_compiled(networks: Sequence[CompiledNetwork]) -> list[Figure]:
    """Return the figures of each compiled network, and of all networks together."""
    found = [each for network in networks for each in _figures_of_compiled(network)]
    for contestant, when, aim in (
        (AT_ONCE, WITHOUT_TRIALS, AT_ONCE_MEAN),
        (AFTER, ONE_TRIAL, AFTER_MEAN),
    ):
        found += mean_figure(
            LATENCY,
            {one.label: one.timings[contestant].ratio_to(one.timings[ONNXRUNTIME]).value for one in networks},
            "x",
            of="networks",
            aim=aim,
            peer=ONNXRUNTIME,
            condition=when,
        )
    at_once = [(network.at_once, network.alone[AT_ONCE]) for network in networks]
    after = [(network.after, network.alone[AFTER]) for network in networks]
    return found + _published_latencies(at_once + after)


def figures_of_disturbed(networks: Sequence[DisturbedNetwork]) -> list[Figure]:
    """Return how much each published latency differs from a user's process, beside the busy process and
    after it, and the medians of all networks."""
    found: list[Figure] = []
    for network in networks:
        for when, timings in ((BESIDE_BUSY, network.disturbed), (AFTER_BUSY, network.quiet)):
            found += _published_latency(network.label, network.tuning, timings, when)
        job = network.tuning.job
        note = "marked as noisy" if job.noisy else ""
        found.append(figure(TRIALS, job.trials_done, "", subject=network.label, note=note))
    beside = _published_latencies([(one.tuning, one.disturbed) for one in networks], BESIDE_BUSY)
    return found + beside + _published_latencies([(one.tuning, one.quiet) for one in networks], AFTER_BUSY)


def _figures_of_tuned(network: TunedNetwork) -> Iterator[Figure]:
    label, timings, tuning = network.label, network.timings, network.tuning
    aims = AIMS.get(label, Aims())
    gain = network.untuned.ours.ratio_to(network.untuned.theirs)
    note = f"{UNTUNED}: {_ms(network.untuned.ours)}"
    yield ratio_figure(SPEED_UP, gain, UNTUNED, label, aim=aims.speedup, note=note)
    if len(network.peers) > 1:
        fastest = _fastest(network)
        *others, last = (peer.name for peer in network.peers)
        among = f"{fastest.words}: {_ms(timings[fastest.name])}; of {', '.join(others)} and {last}"
        ratio = timings[TUNED].ratio_to(timings[fastest.name])
        yield ratio_figure(LATENCY, ratio, FASTEST_PEER, label, aim=aims.of_fastest, note=among)
    yield from _relative_to_peers(label, "", TUNED, timings, network.peers)
    same, note = timings[EXPORTED].ratio_to(timings[TUNED]), f"{TUNED}: {_ms(timings[TUNED])}"
    exported = "latency of the exported database in TVM"
    yield ratio_figure(exported, same, "the artifact", label, aim=aims.of_artifact, note=note)
    yield from _latencies(label, {**timings, UNTUNED: network.untuned.ours})
    yield from _published_latency(label, tuning, network.alone)
    yield from _relative_to_kernels(label, tuning)
    yield from _deviations(label, network.deviation)
    yield from _distance_from_limits(label, tuning)
    yield from _trial_rates(network, aims)
    yield figure(TRIALS, tuning.job.trials_done, "", subject=label)
    yield figure(TOTAL_TIME, tuning.total_s, "s", subject=label)
    yield figure("time to start the stack", tuning.start_s, "s", subject=label)
    settled = network.curve().settled()
    if settled is not None:
        yield figure("time to come within 10% of the last estimate", settled.at_s, "s", subject=label)


def _fastest(network: TunedNetwork) -> Peer:
    return min(network.peers, key=lambda peer: network.timings[peer.name].latency_s.value)


def _figures_of_compiled(network: CompiledNetwork) -> Iterator[Figure]:
    label, timings = network.label, network.timings
    for contestant, when, tuning in (
        (AT_ONCE, WITHOUT_TRIALS, network.at_once),
        (AFTER, ONE_TRIAL, network.after),
    ):
        yield from _relative_to_peers(label, when, contestant, timings, network.peers)
        yield from _published_latency(label, tuning, network.alone[contestant], when)
        yield figure(TIME_TO_ARTIFACT, tuning.job_s, "s", subject=label, condition=when)
        yield figure(TRIALS, tuning.job.trials_done, "", subject=label, condition=when)
    yield from _latencies(label, timings)
    yield from _deviations(label, network.deviation)
    yield figure("subgraphs", network.at_once.subgraphs, "", subject=label)


def _relative_to_peers(
    label: str, when: str, contestant: str, timings: Mapping[str, Timings], peers: Sequence[Peer]
) -> Iterator[Figure]:
    for peer in peers:
        ratio = timings[contestant].ratio_to(timings[peer.name])
        note = f"{peer.words}: {_ms(timings[peer.name])}"
        yield ratio_figure(LATENCY, ratio, peer.name, label, condition=when, note=note)


def _latencies(label: str, timings: Mapping[str, Timings]) -> Iterator[Figure]:
    for name, each in timings.items():
        low_s, high_s = each.latency_s.spread
        spread_ms = (low_s * 1e3, high_s * 1e3)
        latency_ms = each.latency_s.value * 1e3
        yield figure(LATENCY, latency_ms, "ms", subject=label, condition=name, spread=spread_ms)


def _published_latency(label: str, tuning: Tuning, measured: Timings, when: str = "") -> Iterator[Figure]:
    """Compare the latency in the artifact's manifest with the one in a user's process."""
    published_s = tuning.manifest.latency_s
    if published_s is not None:
        ratios = Timings(tuple(published_s / block for block in measured.blocks)).latency_s
        note = f"published: {number(published_s * 1e3)} ms, seen: {_ms(measured)}"
        yield ratio_figure(PUBLISHED, ratios, "a user's process", label, condition=when, note=note)


def _relative_to_kernels(label: str, tuning: Tuning) -> Iterator[Figure]:
    """Compare the published latency with the sum of the model's kernels, timed one by one."""
    published_s = tuning.manifest.latency_s
    kernels_s = network_s(tuning.tasks)
    if published_s is not None and kernels_s:
        note = f"published: {number(published_s * 1e3)} ms, kernels: {number(kernels_s * 1e3)} ms"
        ratio, peer = published_s / kernels_s, "its kernels"
        yield figure(PUBLISHED, ratio, "x", peer=peer, subject=label, aim=OF_KERNELS, note=note)


def _published_latencies(pairs: Sequence[tuple[Tuning, Timings]], when: str = "") -> list[Figure]:
    off = [
        abs(published_s / measured.latency_s.value - 1) * 100
        for tuning, measured in pairs
        if (published_s := tuning.manifest.latency_s) is not None
    ]
    if not off:
        return []
    metric = "median difference of published latencies from a user's process"
    note = f"{len(off)} published models; at most {number(max(off))} %"
    median = statistics.median(off)
    return [figure(metric, median, "%", count=len(off), condition=when, aim=PUBLISHED_PERCENT, note=note)]


def _deviations(label: str, deviation: Deviation) -> Iterator[Figure]:
    note = f"{ONNXRUNTIME}, {len(SEEDS)} random inputs"
    bound = f"{note}; allowed: {ABSOLUTE:g} + {RELATIVE:g} |theirs|"
    yield figure(
        "deviation",
        deviation.of_allowed,
        "x",
        peer="the allowed one",
        subject=label,
        aim=at_most(1),
        note=bound,
    )
    yield figure("absolute deviation", deviation.absolute, "", subject=label, note=note)
    yield figure("relative deviation", deviation.relative, "", subject=label, note=note)


def _distance_from_limits(label: str, tuning: Tuning) -> Iterator[Figure]:
    """Compare the subgraphs' latencies with the machine's limits, and list those that lose most."""
    parts, limits = parts_of(tuning.tasks, tuning.limits), tuning.limits
    measured_s = sum(part.measured_s for part in parts)
    if not measured_s:
        return
    yield figure(PEAK, limits.flops_per_s / 1e9, "GFLOP/s", subject=label)
    yield figure(BANDWIDTH, limits.bytes_per_s / 1e9, "GB/s", subject=label)
    limit_s = sum(part.limit_s for part in parts)
    above, condition = measured_s / limit_s if limit_s else 0.0, ALL_SUBGRAPHS
    yield figure(LATENCY, above, "x", peer=MACHINE_LIMIT, subject=label, condition=condition)
    for part in parts[:FARTHEST]:
        spent = f"{number(part.measured_s * 1e3)} of {number(measured_s * 1e3)} ms"
        note = (
            f"{spent}, limit {number(part.limit_s * 1e3)} ms, {part.weight} times {part.variant or 'direct'}"
        )
        above = part.measured_s / part.limit_s if part.limit_s else 0.0
        yield figure(LATENCY, above, "x", peer=MACHINE_LIMIT, subject=label, condition=part.name, note=note)


def _trial_rates(network: TunedNetwork, aims: Aims) -> Iterator[Figure]:
    """Return the trials a second over the whole run, on a running stack and during the search, and
    MetaSchedule's."""
    label, tuning, rate = network.label, network.tuning, network.peer_rate
    note = f"{METASCHEDULE}: {number(rate.per_s_over(tuning.job.trials_done))} /s" if rate else ""
    for when, per_s, aim in (
        ("from start to finish", tuning.trials_per_s, aims.trials_per_s),
        ("on a running stack", tuning.trials_per_s_started, None),
        ("while searching", tuning.search_trials_per_s, None),
    ):
        if per_s is not None:
            yield figure(TRIALS_A_SECOND, per_s, "/s", subject=label, condition=when, aim=aim, note=note)
    if rate is not None:
        theirs = rate.per_s_over(tuning.job.trials_done)
        failed = f" ({rate.failed} failed)" if rate.failed else ""
        seconds = f"{number(rate.seconds)} s, {number(rate.set_up_s)} s of it set-up"
        note = f"{METASCHEDULE} as it would go on after {rate.trials} trials{failed} in {seconds}"
        times = tuning.trials_per_s / theirs
        yield figure(TRIALS_A_SECOND, times, "x", peer=METASCHEDULE, subject=label, note=note)
        yield figure(TRIALS_A_SECOND, theirs, "/s", subject=label, condition=METASCHEDULE)


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
