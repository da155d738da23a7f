"""One network, tuned and then measured against its peers in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from pydantic import TypeAdapter
from rich.console import Console

from benchmarks.engines import metaschedule
from benchmarks.engines.metaschedule import PeerFailed, TrialRate
from benchmarks.networks import exported, untuned
from benchmarks.networks.tuning import Tuning, tune
from benchmarks.results.curves import Curve
from benchmarks.timing import agreement
from benchmarks.timing.contestants import ModelFile, OnnxFile, ProcessContestant, TvmLibrary
from benchmarks.timing.interleaved import Block, Timings, measure
from examples import make_models

TUNED, UNTUNED, ONNXRUNTIME = "tunefarm", "TVM untuned", "ONNX Runtime"
EXPORTED = "TVM with tunefarm's exported database"
SEEDS = range(5)


@dataclass(frozen=True)
class Plan:
    """How a network is measured. `minutes` and `peer_limit_s` end what takes too long."""

    network: str
    tiny: bool
    trials: int
    minutes: float | None
    threads: int
    rounds: int
    block: Block
    peer_trials: int
    peer_limit_s: float

    @property
    def label(self) -> str:
        return f"{self.network}-tiny" if self.tiny else self.network


@dataclass(frozen=True)
class Manifest:
    """What an artifact's manifest says of how it was built and what it takes."""

    target: str
    inputs: tuple[Input, ...]


@dataclass(frozen=True)
class Input:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Measured:
    """Everything that was found out about one network. `peer_rate` is None if MetaSchedule got nowhere."""

    label: str
    tuning: Tuning
    timings: Mapping[str, Timings]
    deviation: agreement.Deviation
    peer_rate: TrialRate | None

    def curve(self) -> Curve:
        tuned, slow, peer = (self.timings[n].latency_s.value for n in (TUNED, UNTUNED, ONNXRUNTIME))
        return Curve(self.label, self.tuning.points, tuned, slow, peer)


def run(plan: Plan, folder: Path, console: Console) -> Measured:
    """Measures one network in an empty `folder`. Raises CommandError or ClientError as `tune` does."""
    model = folder / f"{plan.label}.onnx"
    onnx.save(make_models.make(plan.network, tiny=plan.tiny), model)
    tuning = tune(
        model,
        trials=plan.trials,
        minutes=plan.minutes,
        threads=plan.threads,
        folder=folder,
        console=console,
    )
    manifest = TypeAdapter(Manifest).validate_json(tuning.manifest.read_bytes())
    console.print(f"{plan.label}: building it untuned")
    untuned.build(model, manifest.target, folder / "untuned.so")
    exported.build(model, manifest.target, tuning.database, folder / "exported.so")
    console.print(f"{plan.label}: {plan.rounds} rounds of interleaved blocks")
    files: dict[str, ModelFile] = {
        TUNED: TvmLibrary(tuning.library),
        EXPORTED: TvmLibrary(folder / "exported.so"),
        UNTUNED: TvmLibrary(folder / "untuned.so"),
        ONNXRUNTIME: OnnxFile(model),
    }
    timings, deviation = _compete(files, _inputs(manifest), plan)
    console.print(f"{plan.label}: {plan.peer_trials} trials of MetaSchedule")
    rate = _peer_rate(model, manifest, plan, folder, console)
    return Measured(plan.label, tuning, timings, deviation, rate)


def _inputs(manifest: Manifest) -> list[list[NDArray[Any]]]:
    specs = [(one.shape, one.dtype) for one in manifest.inputs]
    return [agreement.random_inputs(specs, seed) for seed in SEEDS]


def _compete(
    files: Mapping[str, ModelFile], inputs: list[list[NDArray[Any]]], plan: Plan
) -> tuple[dict[str, Timings], agreement.Deviation]:
    with ExitStack() as processes:
        contestants = {
            name: processes.enter_context(ProcessContestant(file, plan.threads, inputs[0]))
            for name, file in files.items()
        }
        timings = measure(contestants, plan.rounds, plan.block)
        return timings, agreement.compare(contestants[TUNED], contestants[ONNXRUNTIME], inputs)


def _peer_rate(
    model: Path, manifest: Manifest, plan: Plan, folder: Path, console: Console
) -> TrialRate | None:
    """What there is to know without MetaSchedule is still worth knowing, so its failures are only told."""
    work = folder / "metaschedule"
    work.mkdir()
    try:
        return metaschedule.trial_rate(
            model,
            manifest.target,
            threads=plan.threads,
            trials=plan.peer_trials,
            limit_s=plan.peer_limit_s,
            folder=work,
        )
    except PeerFailed as error:
        console.print(f"{plan.label}: MetaSchedule failed: {error}", markup=False)
        return None
