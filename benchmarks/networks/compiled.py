"""Compile a network without trials, then with one for each subgraph, and compare it with its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.networks.peers import ONNXRUNTIME, Peer, peers_of
from benchmarks.networks.plan import Plan, contestants, inputs_of, time_alone
from benchmarks.networks.session import Tuning, session
from benchmarks.timing.contestants import TvmLibrary
from benchmarks.timing.deviation import Deviation, compare_outputs
from benchmarks.timing.interleaved import Timings, measure

AT_ONCE, AFTER = "tunefarm compile", "tunefarm with a trial for each subgraph"


@dataclass(frozen=True)
class CompiledNetwork:
    """A network compiled `at_once`, without trials, and `after` one trial for each subgraph. Both are timed
    in turns with their peers, and, as `alone`, right after publishing."""

    label: str
    at_once: Tuning
    after: Tuning
    timings: Mapping[str, Timings]
    alone: Mapping[str, Timings]
    peers: Sequence[Peer]
    deviation: Deviation


def run(plan: Plan, folder: Path, console: Console) -> CompiledNetwork:
    """Compile and measure a network in an empty `folder`, without records of other networks.

    Raises CommandError or ClientError as `Session.tune` does, and RuntimeError if the code uses other
    instruction sets than the device class.
    """
    model = plan.write(folder)
    with session(folder / "data", plan.threads, plan.device_class, console) as stack:
        at_once = stack.tune(model, 0, folder / "at_once")
        at_once_alone = time_alone(at_once, plan)
        after = stack.tune(model, at_once.subgraphs, folder / "after")
        after_alone = time_alone(after, plan)
    plan.device_class.check(at_once.manifest.target)
    peers = peers_of(model, plan.device_class, plan.masked)
    inputs = inputs_of(at_once.manifest)
    console.print(f"{plan.label}: {plan.rounds} rounds of interleaved blocks")
    ours = {AT_ONCE: TvmLibrary(at_once.library), AFTER: TvmLibrary(after.library)}
    files = ours | {peer.name: peer.file for peer in peers}
    with contestants(files, inputs, plan) as running:
        timings = measure(running, plan.rounds, plan.block)
        deviation = compare_outputs(running[AFTER], running[ONNXRUNTIME], inputs)
    alone = {AT_ONCE: at_once_alone, AFTER: after_alone}
    return CompiledNetwork(plan.label, at_once, after, timings, alone, peers, deviation)
