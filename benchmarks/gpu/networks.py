"""Tune whole networks on a GPU the way a user does, and time them in turns with PyTorch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks.device_class import NATIVE
from benchmarks.gpu.peers import COMPILED, GRAPHS, TorchNetwork, missing
from benchmarks.networks.plan import TUNED
from benchmarks.networks.session import Tuning, session
from benchmarks.results.figures import Figure, at_least, figure, mean_figure, number
from benchmarks.timing.contestants import ModelFile, ProcessContestant, TvmLibrary
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings, measure
from examples import make_models

NETWORKS = ("resnet50", "mobilenet_v2", "dcgan", "bert_base")
# The worker of an embedded stack measures the GPU of the index that this variable has.
WORKER_GPU = "TUNEFARM_WORKER_GPU"
CONVERTER = "onnx2torch"
FASTER = at_least(1.0)


@dataclass(frozen=True)
class NetworkResult:
    """A tuned network, its latency and those of its peers, and the outputs' greatest difference."""

    label: str
    tuning: Tuning
    timings: dict[str, Timings]


def absent_peer() -> str:
    """Say why PyTorch's networks aren't compared with; empty when they are."""
    if why := missing():
        return why
    return "" if importlib.util.find_spec(CONVERTER) else f"{CONVERTER}, which reads ONNX, is not installed"


def run(
    name: str, trials: int, threads: int, rounds: int, tiny: bool, folder: Path, console: Console
) -> NetworkResult:
    """Tune and measure a network in an empty `folder`. Raises CommandError and ClientError as the client
    does."""
    label = f"{name}-tiny" if tiny else name
    model = folder / f"{label}.onnx"
    onnx.save(make_models.make(name, tiny=tiny), model)
    with _on_gpu(), session(folder / "data", threads, NATIVE, console) as stack:
        tuning = stack.tune(model, trials, folder / "tuned")
    inputs = random_inputs([(one.shape, one.dtype) for one in tuning.manifest.inputs], 0)
    files: dict[str, ModelFile] = {TUNED: TvmLibrary(tuning.library, gpu=True)}
    if not absent_peer():
        files |= {GRAPHS: TorchNetwork(model, False), COMPILED: TorchNetwork(model, True)}
    with ExitStack() as processes:
        contestants = {
            one: processes.enter_context(ProcessContestant(file, threads, inputs))
            for one, file in files.items()
        }
        return NetworkResult(label, tuning, measure(contestants, rounds, Block()))


def figures_of(results: Sequence[NetworkResult]) -> list[Figure]:
    """Return the mean over all networks first, then the figures of each."""
    ratios = {result.label: _ratio(result) for result in results}
    found = mean_figure("latency of the faster PyTorch relative to ours, networks", ratios, "x", FASTER)
    for result in results:
        own = result.timings[TUNED].latency_s
        done = f"{result.tuning.job.trials_done} trials in {number(result.tuning.job_s)} s"
        peers = [
            f"{name}: {number(timings.latency_s.value * 1e3)} ms"
            for name, timings in result.timings.items()
            if name != TUNED
        ]
        peer = "; ".join([done, *peers])
        low, high = own.spread
        name = f"{result.label}: latency"
        found.append(figure(name, own.value * 1e3, "ms", peer=peer, spread=(low * 1e3, high * 1e3)))
        ratio = ratios[result.label]
        if ratio is not None:
            name = f"{result.label}: latency of the faster PyTorch relative to ours"
            found.append(figure(name, ratio, "x", aim=FASTER))
    return found


def _ratio(result: NetworkResult) -> float | None:
    """Return the latency of the faster peer over ours; None without peers."""
    peers = [timings for name, timings in result.timings.items() if name != TUNED]
    if not peers:
        return None
    fastest = min(peers, key=lambda timings: timings.latency_s.value)
    return fastest.ratio_to(result.timings[TUNED]).value


@contextlib.contextmanager
def _on_gpu() -> Iterator[None]:
    """Have workers that are started meanwhile measure the first GPU."""
    before = os.environ.get(WORKER_GPU)
    os.environ[WORKER_GPU] = before or "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[WORKER_GPU]
