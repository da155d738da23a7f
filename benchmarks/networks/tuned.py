"""Tune a network, then compare it with its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from rich.console import Console

from benchmarks.engines import metaschedule_networks
from benchmarks.engines.metaschedule_networks import TrialRate
from benchmarks.networks.peers import METASCHEDULE, ONNXRUNTIME, Peer, peers_of
from benchmarks.networks.plan import EXPORTED, TUNED, UNTUNED, Plan, contestants, inputs_of, time_alone
from benchmarks.networks.session import Tuning, session
from benchmarks.networks.tvm_builds import build_untuned, build_with_database, build_with_metaschedule
from benchmarks.results.curves import Curve
from benchmarks.timing.contestants import TvmLibrary
from benchmarks.timing.deviation import Deviation, compare_outputs
from benchmarks.timing.interleaved import Pair, Timings, measure
from tunefarm.client import metaschedule_files

# The rounds of TVM's untuned build, which is too slow for every round: it runs 3D-ResNet-18 for half a
# minute.
SLOW_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class TuningPlan(Plan):
    """The settings of a network's tuning. `minutes` limits our job, `peer_limit_s` MetaSchedule's tuning,
    which is left out if `peer_trials` is 0. With `every_peer`, PyTorch and IREE are also compared."""

    trials: int
    minutes: float | None
    peer_trials: int
    peer_limit_s: float
    every_peer: bool


@dataclass(frozen=True)
class TunedNetwork:
    """All measurements of one network.

    `alone` has the timings of the tuned model right after publishing, in a user's process. `untuned` has
    TVM's untuned build and the tuned one, timed in separate turns. `peer_rate` is None if MetaSchedule
    measured nothing or was left out.
    """

    label: str
    tuning: Tuning
    timings: Mapping[str, Timings]
    alone: Timings
    untuned: Pair
    peers: Sequence[Peer]
    deviation: Deviation
    peer_rate: TrialRate | None

    def curve(self) -> Curve:
        tuned, peer = (self.timings[name].latency_s.value for name in (TUNED, ONNXRUNTIME))
        return Curve(self.label, self.tuning.points, tuned, self.untuned.ours.latency_s.value, peer)


def run(plan: TuningPlan, folder: Path, console: Console) -> TunedNetwork:
    """Tune and measure a network in an empty `folder`.

    Raises CommandError or ClientError as `Session.tune` does, RuntimeError when the device class wasn't kept.
    """
    model = plan.write(folder)
    with session(folder / "data", plan.threads, plan.device_class, console) as stack:
        tuning = stack.tune(model, plan.trials, folder / "tuned", minutes=plan.minutes)
        alone = time_alone(tuning, plan)
        metaschedule_files.write(stack.client.export(), folder)
    target = tuning.manifest.target
    plan.device_class.check(target)
    console.print(f"{plan.label}: building it untuned")
    build_untuned(model, target, folder / "untuned.so")
    build_with_database(model, target, folder, folder / "exported.so")
    rate, tuned_by_tvm = _metaschedule(model, target, plan, folder, console)
    inputs = inputs_of(tuning.manifest)
    installed = peers_of(model, plan.device_class, plan.masked, plan.every_peer)
    peers = _loadable([*installed, *tuned_by_tvm], inputs, plan, console)
    console.print(f"{plan.label}: {plan.rounds} rounds of interleaved blocks")
    ours = {TUNED: TvmLibrary(tuning.library), EXPORTED: TvmLibrary(folder / "exported.so")}
    files = ours | {peer.name: peer.file for peer in peers}
    with contestants(files, inputs, plan) as running:
        timings = measure(running, plan.rounds, plan.block)
        deviation = compare_outputs(running[TUNED], running[ONNXRUNTIME], inputs)
    slow = {UNTUNED: TvmLibrary(folder / "untuned.so"), TUNED: ours[TUNED]}
    with contestants(slow, inputs, plan) as running:
        seldom = measure(running, SLOW_ROUNDS, replace(plan.block, min_calls=1))
    pair = Pair(seldom[UNTUNED], seldom[TUNED])
    return TunedNetwork(plan.label, tuning, timings, alone, pair, peers, deviation, rate)


def _loadable(
    peers: Sequence[Peer], inputs: list[list[NDArray[Any]]], plan: TuningPlan, console: Console
) -> list[Peer]:
    """Return the peers that can run the model. Print why others can't."""
    found = []
    for peer in peers:
        try:
            with contestants({peer.name: peer.file}, inputs, plan) as running:
                running[peer.name].outputs(inputs[0])
                found.append(peer)
        except Exception as error:  # compilers have their own exceptions
            console.print(f"{plan.label}: {peer.name} can't run it: {error}", markup=False, soft_wrap=True)
    return found


def _metaschedule(
    model: Path, target: str, plan: TuningPlan, folder: Path, console: Console
) -> tuple[TrialRate | None, list[Peer]]:
    """Tune with MetaSchedule, and compile its result. A failure is printed, and other figures are still
    taken."""
    if not plan.peer_trials:
        return None, []
    console.print(f"{plan.label}: {plan.peer_trials} trials of MetaSchedule")
    work = folder / "metaschedule"
    work.mkdir()
    library = TvmLibrary(work / "model.so")
    try:
        rate = metaschedule_networks.trial_rate(
            model,
            target,
            threads=plan.threads,
            trials=plan.peer_trials,
            limit_s=plan.peer_limit_s,
            folder=work,
        )
        if rate is None:
            console.print(f"{plan.label}: MetaSchedule recorded nothing in {plan.peer_limit_s:.0f} s")
            return None, []
        build_with_metaschedule(model, target, work, library.path)
    except Exception as error:  # compilers have their own exceptions
        console.print(f"{plan.label}: MetaSchedule failed: {error}", markup=False, soft_wrap=True)
        return None, []
    return rate, [Peer(METASCHEDULE, f"{METASCHEDULE} after {rate.trials} trials", library)]
