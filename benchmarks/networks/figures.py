"""Figures of whole networks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.networks.compiled import AFTER, AT_ONCE, CompiledNetwork
from benchmarks.networks.limits import parts_of
from benchmarks.networks.peers import ONNXRUNTIME, Peer
from benchmarks.networks.plan import EXPORTED, SEEDS, TUNED, UNTUNED
from benchmarks.networks.session import Tuning
from benchmarks.networks.tuned import TunedNetwork
from benchmarks.results.figures import Aim, Figure, at_least, at_most, figure, number
from benchmarks.timing.deviation import ABSOLUTE, RELATIVE, Deviation
from benchmarks.timing.interleaved import Median, Timings


@dataclass(frozen=True)
class Aims:
    """Aims for a network: ratios, and trials a second from start to finish.

    `of_fastest` bounds the latency over the fastest peer's; `of_artifact` the exported database's over the
    artifact's, which has the same schedules.
    """

    speedup: Aim | None = None
    of_fastest: Aim | None = None
    of_artifact: Aim | None = None
    trials_per_s: Aim | None = None


CONVOLUTIONAL = Aims(of_fastest=at_most(1.0), trials_per_s=at_least(4))
# Winograd's filtering takes a fraction of these networks' multiplications.
FILTERED = at_most(0.77)
AIMS: Mapping[str, Aims] = {
    "resnet18": Aims(at_least(30), FILTERED, at_most(1.05), at_least(4)),
    "resnet3d_18": Aims(of_fastest=FILTERED, trials_per_s=at_least(4)),
    **dict.fromkeys(("resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_t", "dcgan"), CONVOLUTIONAL),
    **dict.fromkeys(("bert_base", "vit_b16", "gpt2"), Aims(of_fastest=at_most(1.0))),
}
# How far a published latency may be from the one in a user's process.
PUBLISHED_PERCENT = at_most(3)
# The subgraphs that are named, of those that take longer than the machine must.
FARTHEST = 5
AT_ONCE_MEAN, AFTER_MEAN, TUNED_MEAN = at_most(1.5), at_most(1.25), at_most(0.83)


def figures_of_tuned(networks: Sequence[TunedNetwork]) -> list[Figure]:
    """Return the figures of every tuned network under its label, and those of all together."""
    found = [each for network in networks for each in _figures_of_tuned(network)]
    if len(networks) > 1:
        name = f"geometric mean of {len(networks)} networks: latency relative to each one's fastest peer"
        ratios = [one.timings[TUNED].ratio_to(one.timings[_fastest(one).name]).value for one in networks]
        labels = ", ".join(network.label for network in networks)
        found.append(figure(name, statistics.geometric_mean(ratios), "x", aim=TUNED_MEAN, peer=labels))
    return found + _published_latencies([(one.tuning, one.alone) for one in networks])


def figures_of_compiled(networks: Sequence[CompiledNetwork]) -> list[Figure]:
    """Return the figures of every compiled network under its label, and those of all together."""
    found = [each for network in networks for each in _figures_of_compiled(network)]
    labels = ", ".join(network.label for network in networks)
    for contestant, what, aim in (
        (AT_ONCE, "without trials", AT_ONCE_MEAN),
        (AFTER, "after a trial for each subgraph", AFTER_MEAN),
    ):
        name = f"geometric mean of {len(networks)} networks: latency {what} relative to {ONNXRUNTIME}"
        ratios = [one.timings[contestant].ratio_to(one.timings[ONNXRUNTIME]).value for one in networks]
        found.append(figure(name, statistics.geometric_mean(ratios), "x", aim=aim, peer=labels))
    at_once = [(network.at_once, network.alone[AT_ONCE]) for network in networks]
    after = [(network.after, network.alone[AFTER]) for network in networks]
    return found + _published_latencies(at_once + after)


def _figures_of_tuned(network: TunedNetwork) -> Iterator[Figure]:
    label, timings, tuning = network.label, network.timings, network.tuning
    aims = AIMS.get(label, Aims())
    gain = network.untuned.ours.ratio_to(network.untuned.theirs)
    peer = f"{UNTUNED}: {_ms(network.untuned.ours)}"
    yield _ratio(f"{label}: speed-up over TVM untuned", gain, peer, aims.speedup)
    if len(network.peers) > 1:
        fastest = _fastest(network)
        *others, last = (peer.name for peer in network.peers)
        among = "faster" if len(others) == 1 else "fastest"
        name = f"{label}: latency relative to the {among} of {', '.join(others)} and {last}"
        ratio = timings[TUNED].ratio_to(timings[fastest.name])
        yield _ratio(name, ratio, f"{fastest.words}: {_ms(timings[fastest.name])}", aims.of_fastest)
    yield from _relative_to_peers(label, "latency", TUNED, timings, network.peers)
    name = f"{label}: exported database in TVM relative to the artifact"
    same = timings[EXPORTED].ratio_to(timings[TUNED])
    yield _ratio(name, same, f"{TUNED}: {_ms(timings[TUNED])}", aims.of_artifact)
    yield from _latencies(label, {**timings, UNTUNED: network.untuned.ours})
    yield from _published_latency(label, tuning, network.alone)
    yield from _deviations(label, network.deviation)
    yield from _distance_from_limits(label, tuning)
    yield from _trial_rates(network, aims)
    yield figure(f"{label}: trials", tuning.job.trials_done, "")
    yield figure(f"{label}: from start to finish", tuning.total_s, "s")
    yield figure(f"{label}: start of the stack in it", tuning.start_s, "s")
    settled = network.curve().settled()
    if settled is not None:
        yield figure(f"{label}: until 10% above the last estimate", settled.at_s, "s")


def _fastest(network: TunedNetwork) -> Peer:
    return min(network.peers, key=lambda peer: network.timings[peer.name].latency_s.value)


def _figures_of_compiled(network: CompiledNetwork) -> Iterator[Figure]:
    label, timings = network.label, network.timings
    for contestant, what, tuning in (
        (AT_ONCE, "without trials", network.at_once),
        (AFTER, f"after {network.after.job.trials_done} trials", network.after),
    ):
        yield from _relative_to_peers(label, f"latency {what}", contestant, timings, network.peers)
        yield from _published_latency(f"{label} {what}", tuning, network.alone[contestant])
        yield figure(f"{label}: from upload to artifact {what}", tuning.job_s, "s")
    yield from _latencies(label, timings)
    yield from _deviations(label, network.deviation)
    yield figure(f"{label}: subgraphs", network.at_once.subgraphs, "")
    yield figure(f"{label}: best guesses that were tried", network.at_once.job.trials_done, "")


def _relative_to_peers(
    label: str, what: str, contestant: str, timings: Mapping[str, Timings], peers: Sequence[Peer]
) -> Iterator[Figure]:
    for peer in peers:
        ratio = timings[contestant].ratio_to(timings[peer.name])
        yield _ratio(
            f"{label}: {what} relative to {peer.name}", ratio, f"{peer.words}: {_ms(timings[peer.name])}"
        )


def _latencies(label: str, timings: Mapping[str, Timings]) -> Iterator[Figure]:
    for name, each in timings.items():
        low_s, high_s = each.latency_s.spread
        spread_ms = (low_s * 1e3, high_s * 1e3)
        yield figure(f"{label}: latency, {name}", each.latency_s.value * 1e3, "ms", spread=spread_ms)


def _published_latency(label: str, tuning: Tuning, measured: Timings) -> Iterator[Figure]:
    """Compare the latency in the artifact's manifest with the one in a user's process."""
    published_s = tuning.manifest.latency_s
    if published_s is not None:
        ratios = Timings(tuple(published_s / block for block in measured.blocks)).latency_s
        peer = f"published: {number(published_s * 1e3)} ms, seen: {_ms(measured)}"
        yield _ratio(f"{label}: published latency relative to a user's process", ratios, peer)


def _published_latencies(pairs: Sequence[tuple[Tuning, Timings]]) -> list[Figure]:
    off = [
        abs(published_s / measured.latency_s.value - 1) * 100
        for tuning, measured in pairs
        if (published_s := tuning.manifest.latency_s) is not None
    ]
    if not off:
        return []
    name = "published latency differs from a user's process by, median over networks"
    peer = f"{len(off)} published models; at most {number(max(off))} %"
    return [figure(name, statistics.median(off), "%", aim=PUBLISHED_PERCENT, peer=peer)]


def _deviations(label: str, deviation: Deviation) -> Iterator[Figure]:
    peer = f"{ONNXRUNTIME}, {len(SEEDS)} random inputs"
    allowed = f"{peer}; allowed: {ABSOLUTE:g} + {RELATIVE:g} |theirs|"
    name = f"{label}: deviation relative to what is allowed"
    yield figure(name, deviation.of_allowed, "x", aim=at_most(1), peer=allowed)
    yield figure(f"{label}: absolute deviation", deviation.absolute, "", peer=peer)
    yield figure(f"{label}: relative deviation", deviation.relative, "", peer=peer)


def _distance_from_limits(label: str, tuning: Tuning) -> Iterator[Figure]:
    """Compare the subgraphs' latencies with the machine's limits for them, and name those that lose most."""
    parts, limits = parts_of(tuning.tasks, tuning.limits), tuning.limits
    measured_s = sum(part.measured_s for part in parts)
    if not measured_s:
        return
    machine = (
        f"{number(limits.flops_per_s / 1e9)} GFLOP/s, {number(limits.bytes_per_s / 1e9)} GB/s from memory"
    )
    share = sum(part.limit_s for part in parts) / measured_s
    yield figure(
        f"{label}: the machine's limits relative to the subgraphs' latencies", share, "x", peer=machine
    )
    for part in parts[:FARTHEST]:
        spent = f"{number(part.measured_s * 1e3)} of {number(measured_s * 1e3)} ms"
        told = (
            f"{spent}, limit {number(part.limit_s * 1e3)} ms, {part.weight} times {part.variant or 'direct'}"
        )
        of_limit = part.measured_s / part.limit_s if part.limit_s else 0.0
        yield figure(
            f"{label}: latency relative to the machine's limit, {part.name}", of_limit, "x", peer=told
        )


def _trial_rates(network: TunedNetwork, aims: Aims) -> Iterator[Figure]:
    """Trials a second over the whole run, on a running stack and while searching, beside MetaSchedule's."""
    label, tuning, rate = network.label, network.tuning, network.peer_rate
    peer = f"MetaSchedule: {number(rate.per_s_over(tuning.job.trials_done))} /s" if rate else None
    name = f"{label}: trials a second from start to finish"
    yield figure(name, tuning.trials_per_s, "/s", aim=aims.trials_per_s, peer=peer)
    name = f"{label}: trials a second on a running stack"
    yield figure(name, tuning.trials_per_s_started, "/s", peer=peer)
    if tuning.search_trials_per_s is not None:
        searching = tuning.search_trials_per_s
        yield figure(f"{label}: trials a second while searching", searching, "/s", peer=peer)
    if rate is not None:
        theirs = rate.per_s_over(tuning.job.trials_done)
        failed = f" ({rate.failed} failed)" if rate.failed else ""
        seconds = f"{number(rate.seconds)} s, {number(rate.set_up_s)} s of it set-up"
        basis = f"MetaSchedule as it would go on after {rate.trials} trials{failed} in {seconds}"
        name = f"{label}: trials a second relative to MetaSchedule"
        yield figure(name, tuning.trials_per_s / theirs, "x", peer=basis)
        yield figure(f"{label}: trials a second, MetaSchedule", theirs, "/s")


def _ratio(name: str, ratio: Median, peer: str, aim: Aim | None = None) -> Figure:
    return figure(name, ratio.value, "x", aim=aim, peer=peer, spread=ratio.spread)


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
