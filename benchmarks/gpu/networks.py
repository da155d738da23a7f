"""Tune whole networks on a GPU the way a user does, and time them in turns with PyTorch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks.device_class import NATIVE
from benchmarks.fit.databases import read_databases
from benchmarks.fit.fitting import estimated, pairs_right
from benchmarks.fit.programs import ProgramsError
from benchmarks.gpu.peers import COMPILED, GRAPHS, TorchNetwork, missing
from benchmarks.networks.plan import TUNED
from benchmarks.networks.session import Tuning, session
from benchmarks.results.figures import Figure, at_least, at_most, figure, mean_figure, number
from benchmarks.results.metrics import LATENCY, SPEED_UP, TRIALS_A_SECOND
from benchmarks.timing.contestants import ModelFile, ProcessContestant, TvmLibrary
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings, measure
from core.model_latency import network_s
from examples import make_models
from search.cost.cost_parameters import FITTED

FASTER_PYTORCH = "the faster PyTorch"
NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "vit_b16", "dcgan")
# The element type of a network's matrix products. With TF32, the network itself is float32.
TYPES = ("float32", "tf32", "float16")
# The variable with the index of the GPU that the worker of an embedded stack measures.
WORKER_GPU = "TUNEFARM_WORKER_GPU"
CONVERTER = "onnx2torch"
FASTER = at_least(1.0)
# The largest allowed difference of the kernels' total latency from the published model's, in percent.
CLOSE = at_most(10)
# The share of pairs of a workload's programs that the estimate ranks right.
RANKED = at_least(80)
# Aims for trials a second while searching.
PACE = at_least(10)


@dataclass(frozen=True)
class Plan:
    """A network, the type of its matrix products, and its tuning. `minutes` limits the trials; None for no
    limit."""

    network: str
    element_type: str
    trials: int
    minutes: float | None
    threads: int
    rounds: int
    tiny: bool

    @property
    def label(self) -> str:
        tiny = "-tiny" if self.tiny else ""
        of_type = "" if self.element_type == "float32" else f" in {self.element_type}"
        return f"{self.network}{tiny}{of_type}"

    def model(self) -> onnx.ModelProto:
        made = make_models.make(self.network, tiny=self.tiny)
        if self.element_type != "float16":
            return made
        from examples.quantization import narrowed  # needs ONNX Runtime, which few machines with GPUs have

        return narrowed(made, onnx.TensorProto.FLOAT16)


@dataclass(frozen=True)
class NetworkResult:
    """A tuned network, its and its peers' latencies, and how many pairs of its programs the estimate ranks
    right, of how many."""

    label: str
    tuning: Tuning
    timings: dict[str, Timings]
    ranked: tuple[int, int] = (0, 0)


def absent_peer() -> str:
    """Return why PyTorch's networks aren't compared; "" if they are."""
    if why := missing():
        return why
    return "" if importlib.util.find_spec(CONVERTER) else f"{CONVERTER}, which reads ONNX, is not installed"


def run(plan: Plan, folder: Path, console: Console) -> NetworkResult:
    """Tune and measure a network in an empty `folder`. Raises CommandError, ClientError."""
    model = folder / f"{plan.network}.onnx"
    onnx.save(plan.model(), model)
    data = folder / "data"
    with _on_gpu(), session(data, plan.threads, NATIVE, console) as stack:
        tuning = stack.tune(
            model, plan.trials, folder / "tuned", minutes=plan.minutes, tf32=plan.element_type == "tf32"
        )
    ranked = _pairs_right(data / "tunefarm.db")
    inputs = random_inputs([(one.shape, one.dtype) for one in tuning.manifest.inputs], 0)
    files: dict[str, ModelFile] = {TUNED: TvmLibrary(tuning.library, gpu=True)}
    if not absent_peer():
        for name, is_compiled in ((GRAPHS, False), (COMPILED, True)):
            files[name] = TorchNetwork(model, is_compiled, plan.element_type)
    with ExitStack() as processes:
        contestants = {
            one: processes.enter_context(ProcessContestant(file, plan.threads, inputs))
            for one, file in files.items()
        }
        return NetworkResult(plan.label, tuning, measure(contestants, plan.rounds, Block()), ranked)


def _pairs_right(database: Path) -> tuple[int, int]:
    """Return how many pairs of the job's programs the estimate ranks right, and how many pairs there are."""
    try:
        return pairs_right(read_databases([database]), partial(estimated, factors=FITTED))
    except ProgramsError:  # no trial was right
        return 0, 0


def figures_of(results: Sequence[NetworkResult]) -> list[Figure]:
    """Return the mean over all networks first, then the figures of each."""
    ratios = {result.label: _ratio(result) for result in results}
    found = mean_figure(SPEED_UP, ratios, "x", of="networks", aim=FASTER, peer=FASTER_PYTORCH)
    for result in results:
        own = result.timings[TUNED].latency_s
        done = f"{result.tuning.job.trials_done} trials in {number(result.tuning.job_s)} s"
        peers = [
            f"{name}: {number(timings.latency_s.value * 1e3)} ms"
            for name, timings in result.timings.items()
            if name != TUNED
        ]
        low, high = own.spread
        latency = figure(
            LATENCY,
            own.value * 1e3,
            "ms",
            subject=result.label,
            spread=(low * 1e3, high * 1e3),
            note="; ".join([done, *peers]),
        )
        found.append(latency)
        found += _search_figures(result)
        ratio = ratios[result.label]
        if ratio is not None:
            found.append(figure(SPEED_UP, ratio, "x", peer=FASTER_PYTORCH, subject=result.label, aim=FASTER))
    return found


def _search_figures(result: NetworkResult) -> list[Figure]:
    """Return the figures of the search: how well the kernels' latencies predict the model's, how well the
    estimate ranks programs, and trials a second."""
    found, tuning = [], result.tuning
    summed_s, published_s = network_s(tuning.tasks), tuning.manifest.latency_s
    if summed_s and published_s:
        percent = 100 * abs(summed_s / published_s - 1)
        note = f"sum of kernels: {number(summed_s * 1e3)} ms, published: {number(published_s * 1e3)} ms"
        error = "error of the sum of kernels"
        found.append(figure(error, percent, "%", subject=result.label, aim=CLOSE, note=note))
    right, pairs = result.ranked
    if pairs:
        name, condition = "pairs in the right order", "by the estimate"
        percent = 100 * right / pairs
        found.append(
            figure(name, percent, "%", subject=result.label, condition=condition, count=pairs, aim=RANKED)
        )
    if pace := tuning.search_trials_per_s:
        condition = "while searching"
        found.append(figure(TRIALS_A_SECOND, pace, "/s", subject=result.label, condition=condition, aim=PACE))
    return found


def _ratio(result: NetworkResult) -> float | None:
    """Return the faster peer's latency divided by ours; None without peers."""
    peers = [timings for name, timings in result.timings.items() if name != TUNED]
    if not peers:
        return None
    fastest = min(peers, key=lambda timings: timings.latency_s.value)
    return fastest.ratio_to(result.timings[TUNED]).value


@contextlib.contextmanager
def _on_gpu() -> Iterator[None]:
    """Let workers that start in this context measure the first GPU."""
    before = os.environ.get(WORKER_GPU)
    os.environ[WORKER_GPU] = before or "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[WORKER_GPU]
