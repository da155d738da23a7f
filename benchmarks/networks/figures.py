"""What was measured of networks, as figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.engines.metaschedule_networks import TrialRate
from benchmarks.networks.compiled import AFTER, AT_ONCE, CompiledNetwork
from benchmarks.networks.peers import ONNXRUNTIME, Peer
from benchmarks.networks.plan import EXPORTED, SEEDS, TUNED, UNTUNED
from benchmarks.networks.session import Tuning
from benchmarks.networks.tuned import TunedNetwork
from benchmarks.results.figures import Aim, Figure, at_least, at_most, figure, number
from benchmarks.timing.deviation import ABSOLUTE, RELATIVE, Deviation
from benchmarks.timing.interleaved import Median, Timings


@dataclass(frozen=True)
class Aims:
    """What a network should reach: factors, and trials a second from start to finish.

    `of_fastest` is for the latency relative to the fastest peer. `of_artifact` is for the exported database:
    the same schedules, so the same speed but for noise.
    """

    speedup: Aim | None = None
    of_fastest: Aim | None = None
    of_artifact: Aim | None = None
    trials_per_s: Aim | None = None


AIMS: Mapping[str, Aims] = {
    "resnet18": Aims(at_least(30), at_most(1.0), at_most(1.05), at_least(3)),
    "mobilenet_v2": Aims(of_fastest=at_most(1.0)),
}
# By how much what a job publishes may differ from what its users see.
PUBLISHED_PERCENT = at_most(3)
AT_ONCE_MEAN, AFTER_MEAN = at_most(1.5), at_most(1.25)


def figures_of_tuned(networks: Sequence[TunedNetwork]) -> list[Figure]:
    """The figures of every network under its label, and those of all together."""
    found = [each for measured in networks for each in _tuned(measured)]
    pairs = [(measured.tuning, measured.timings[TUNED]) for measured in networks]
    return [*found, *_published_all(pairs)]


def figures_of_compiled(networks: Sequence[CompiledNetwork]) -> list[Figure]:
    """The same of networks that were compiled."""
    found = [each for compiled in networks for each in _compiled(compiled)]
    of_all = f"geometric mean of {len(networks)} networks"
    for name, what, aim in (
        (AT_ONCE, "without trials", AT_ONCE_MEAN),
        (AFTER, "after a trial for each subgraph", AFTER_MEAN),
    ):
        ratios = [_to(compiled.timings, name, ONNXRUNTIME).value for compiled in networks]
        labels = ", ".join(compiled.label for compiled in networks)
        found.append(
            figure(
                f"{of_all}: latency {what} relative to {ONNXRUNTIME}",
                statistics.geometric_mean(ratios),
                "x",
                aim=aim,
                peer=labels,
            )
        )
    pairs = [
        pair
        for each in networks
        for pair in ((each.at_once, each.timings[AT_ONCE]), (each.after, each.timings[AFTER]))
    ]
    return [*found, *_published_all(pairs)]


def _tuned(measured: TunedNetwork) -> Iterator[Figure]:
    label, timings, aims = measured.label, measured.timings, AIMS.get(measured.label, Aims())
    gain = measured.untuned.ours.ratio_to(measured.untuned.theirs)
    slow = f"{UNTUNED}: {_ms(measured.untuned.ours)}"
    yield _ratio(f"{label}: speed-up over TVM untuned", gain, slow, aims.speedup)
    if len(measured.peers) > 1:
        fastest = min(measured.peers, key=lambda peer: timings[peer.name].latency_s.value)
        names = " and ".join(peer.name for peer in measured.peers)
        of_fastest = _to(timings, TUNED, fastest.name)
        words = f"{fastest.words}: {_ms(timings[fastest.name])}"
        yield _ratio(
            f"{label}: latency relative to the faster of {names}", of_fastest, words, aims.of_fastest
        )
    yield from _relative_to_peers(label, "latency", TUNED, timings, measured.peers)
    same = _to(timings, EXPORTED, TUNED)
    tuned = f"{TUNED}: {_ms(timings[TUNED])}"
    yield _ratio(f"{label}: exported database in TVM relative to the artifact", same, tuned, aims.of_artifact)
    yield from _latencies(label, {**timings, UNTUNED: measured.untuned.ours})
    yield from _published(label, measured.tuning, timings[TUNED])
    yield from _agreement(label, measured.deviation)
    yield from _search(measured, aims)
    yield from _times(measured)


def _compiled(compiled: CompiledNetwork) -> Iterator[Figure]:
    label, timings = compiled.label, compiled.timings
    more = compiled.after.job.trials_done
    for name, what, tuning in (
        (AT_ONCE, "without trials", compiled.at_once),
        (AFTER, f"after {more} trials", compiled.after),
    ):
        yield from _relative_to_peers(label, f"latency {what}", name, timings, compiled.peers)
        yield from _published(f"{label} {what}", tuning, timings[name])
        yield figure(f"{label}: from upload to artifact {what}", tuning.job_s, "s")
    yield from _latencies(label, timings)
    yield from _agreement(label, compiled.deviation)
    yield figure(f"{label}: subgraphs", compiled.at_once.subgraphs, "")
    yield figure(f"{label}: best guesses that were tried", compiled.at_once.job.trials_done, "")


def _relative_to_peers(
    label: str, what: str, name: str, timings: Mapping[str, Timings], peers: Sequence[Peer]
) -> Iterator[Figure]:
    for peer in peers:
        words = f"{peer.words}: {_ms(timings[peer.name])}"
        yield _ratio(f"{label}: {what} relative to {peer.name}", _to(timings, name, peer.name), words)


def _latencies(label: str, timings: Mapping[str, Timings]) -> Iterator[Figure]:
    for name, each in timings.items():
        low_s, high_s = each.latency_s.spread
        spread_ms = (low_s * 1e3, high_s * 1e3)
        yield figure(f"{label}: latency, {name}", each.latency_s.value * 1e3, "ms", spread=spread_ms)


def _published(label: str, tuning: Tuning, seen: Timings) -> Iterator[Figure]:
    """How what the job said relates to what is seen in turns with the peers."""
    said_s = tuning.manifest.latency_s
    if said_s is None:
        return
    blocks = [said_s / block for block in seen.blocks]
    low, high = Timings(tuple(blocks)).latency_s.spread
    said = f"published: {number(said_s * 1e3)} ms, in turns: {_ms(seen)}"
    name = f"{label}: published latency relative to a user's process"
    yield figure(name, statistics.median(blocks), "x", peer=said, spread=(low, high))


def _published_all(pairs: Sequence[tuple[Tuning, Timings]]) -> Iterator[Figure]:
    off = [
        abs(said_s / seen.latency_s.value - 1) * 100
        for tuning, seen in pairs
        if (said_s := tuning.manifest.latency_s) is not None
    ]
    if off:
        name = "published latency differs from a user's process by, median over networks"
        worst = f"{len(off)} published models; at most {number(max(off))} %"
        yield figure(name, statistics.median(off), "%", aim=PUBLISHED_PERCENT, peer=worst)


def _agreement(label: str, deviation: Deviation) -> Iterator[Figure]:
    peer = f"{ONNXRUNTIME}, {len(SEEDS)} random inputs"
    allowed = f"{peer}; allowed: {ABSOLUTE:g} + {RELATIVE:g} |theirs|"
    name = f"{label}: deviation relative to what is allowed"
    yield figure(name, deviation.of_allowed, "x", aim=at_most(1), peer=allowed)
    yield figure(f"{label}: absolute deviation", deviation.absolute, "", peer=peer)
    yield figure(f"{label}: relative deviation", deviation.relative, "", peer=peer)


def _search(measured: TunedNetwork, aims: Aims) -> Iterator[Figure]:
    """Trials a second, from the whole run to the search alone, and MetaSchedule's."""
    label, tuning, rate = measured.label, measured.tuning, measured.peer_rate
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
        ratio = tuning.trials_per_s / theirs
        name = f"{label}: trials a second relative to MetaSchedule"
        yield figure(name, ratio, "x", peer=_basis(rate))
        yield figure(f"{label}: trials a second, MetaSchedule", theirs, "/s")


def _basis(rate: TrialRate) -> str:
    failed = f" ({rate.failed} failed)" if rate.failed else ""
    seconds = f"{number(rate.seconds)} s, {number(rate.set_up_s)} s of it set-up"
    return f"MetaSchedule as it would go on after {rate.trials} trials{failed} in {seconds}"


def _times(measured: TunedNetwork) -> Iterator[Figure]:
    label, tuning = measured.label, measured.tuning
    yield figure(f"{label}: trials", tuning.job.trials_done, "")
    yield figure(f"{label}: from start to finish", tuning.total_s, "s")
    yield figure(f"{label}: start of the stack in it", tuning.start_s, "s")
    settled = measured.curve().settled()
    if settled is not None:
        yield figure(f"{label}: until 10% above the last estimate", settled.at_s, "s")


def _to(timings: Mapping[str, Timings], name: str, other: str) -> Median:
    return timings[name].ratio_to(timings[other])


def _ratio(name: str, ratio: Median, peer: str, aim: Aim | None = None) -> Figure:
    return figure(name, ratio.value, "x", aim=aim, peer=peer, spread=ratio.spread)


def _ms(timings: Timings) -> str:
    return f"{number(timings.latency_s.value * 1e3)} ms"
