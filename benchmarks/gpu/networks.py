"""Tune whole networks on a GPU the way a user does, and time them in turns with PyTorch and JAX."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import onnx
from rich.console import Console

from benchmarks.device_class import NATIVE
from benchmarks.fit.databases import read_databases
from benchmarks.fit.fitting import estimated, pairs_right
from benchmarks.fit.programs import ProgramsError
from benchmarks.gpu.jax_network import JAX, JaxNetwork, missing_jax
from benchmarks.gpu.peers import COMPILED, GRAPHS, LimitedLoad, TorchNetwork, missing
from benchmarks.networks.plan import TUNED
from benchmarks.networks.session import Tuning, session
from benchmarks.results.figures import Figure, at_least, at_most, figure, mean_figure, number
from benchmarks.results.metrics import FASTEST_PEER, LATENCY, SPEED_UP, TRIALS_A_SECOND
from benchmarks.timing.contestants import ModelFile, ProcessContestant, TvmLibrary
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings, measure
from core.model_latency import network_s
from examples import make_models
from search.cost.cost_parameters import FITTED

NETWORKS = ("resnet18", "resnet50", "mobilenet_v2", "bert_base", "vit_b16", "dcgan")
# The element type of a network's matrix products. With TF32, the network itself is float32.
TYPES = ("float32", "tf32", "float16")
IN_TYPE = " in "
# The variable with the index of the GPU that the worker of an embedded stack measures.
WORKER_GPU = "TUNEFARM_WORKER_GPU"
CONVERTER = "onnx2torch"
# With which peer a network is compared, and how many times as fast it is to be, by the type of its products.
AIMS = {"float32": (GRAPHS, at_least(2.0)), "tf32": (FASTEST_PEER, at_least(1.2))}
AIMS["float16"] = FASTEST_PEER, at_least(1.0)
# The largest allowed difference of the kernels' total latency from the published model's, in percent.
CLOSE = at_most(10)
# The share of pairs of a workload's programs that the estimate ranks right.
RANKED = at_least(80)
# Aims for trials a second while searching.
PACE = at_least(10)


@dataclass(frozen=True)
class Plan:
    """A network, the type of its matrix products, and its tuning. `minutes` limits the trials; None for no
    limit. A peer that isn't compiled after `peer_s` seconds is left out."""

    network: str
    element_type: str
    trials: int
    minutes: float | None
    threads: int
    rounds: int
    tiny: bool
    peer_s: float

    @property
    def label(self) -> str:
        tiny = "-tiny" if self.tiny else ""
        of_type = "" if self.element_type == "float32" else f"{IN_TYPE}{self.element_type}"
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
    right, of how many. `left_out` says why the other peers have no latency."""

    plan: Plan
    tuning: Tuning
    timings: Mapping[str, Timings]
    ranked: tuple[float, int] = (0, 0)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.plan.label

    def ratio(self, peer: str) -> float | None:
        """Return a peer's latency divided by ours; None if it has none."""
        peers = {name: timings for name, timings in self.timings.items() if name != TUNED}
        if peer == FASTEST_PEER and peers:
            peer = min(peers, key=lambda name: peers[name].latency_s.value)
        return peers[peer].ratio_to(self.timings[TUNED]).value if peer in peers else None


def absent_peers() -> dict[str, str]:
    """Return why networks aren't compared with some peers, by the peer's name."""
    why = missing()
    if not why and importlib.util.find_spec(CONVERTER) is None:
        why = f"{CONVERTER}, which reads ONNX, is not installed"
    found = {GRAPHS: why, COMPILED: why, JAX: missing_jax()}
    return {name: why for name, why in found.items() if why}


def run(plan: Plan, folder: Path, console: Console, keep: Callable[[NetworkResult], None]) -> None:
    """Tune and measure a network in an empty `folder`.

    `keep` gets the result when the network alone was timed, and again after each peer, in case that the time
    is over before the last one. Raises CommandError, ClientError.
    """
    model = folder / f"{plan.network}.onnx"
    onnx.save(plan.model(), model)
    data = folder / "data"
    with _on_gpu(), session(data, plan.threads, NATIVE, console) as stack:
        tuning = stack.tune(
            model, plan.trials, folder / "tuned", minutes=plan.minutes, tf32=plan.element_type == "tf32"
        )
    inputs = random_inputs([(one.shape, one.dtype) for one in tuning.manifest.inputs], 0)
    peers: dict[str, ModelFile] = {
        GRAPHS: TorchNetwork(model, False, plan.element_type),
        COMPILED: TorchNetwork(model, True, plan.element_type),
        JAX: JaxNetwork(model, plan.element_type),
    }
    absent = absent_peers()
    left_out = dict.fromkeys(peers, "there was no time") | absent
    with ExitStack() as processes:
        contestants = {
            TUNED: processes.enter_context(
                ProcessContestant(TvmLibrary(tuning.library, gpu=True), plan.threads, inputs)
            )
        }
        timings = measure(contestants, plan.rounds, Block())
        result = NetworkResult(plan, tuning, timings, _pairs_right(data / "tunefarm.db"), left_out)
        keep(result)
        for name in [one for one in peers if one not in absent]:
            try:
                peer = ProcessContestant(LimitedLoad(peers[name], plan.peer_s), plan.threads, inputs)
                contestants[name] = processes.enter_context(peer)
                timings = measure(contestants, plan.rounds, Block())
            except BrokenProcessPool:
                contestants.pop(name, None)
                left_out = {**left_out, name: f"it took over {plan.peer_s:g} s to compile, or crashed"}
            except Exception as error:  # a peer's library may raise any exception class
                contestants.pop(name, None)
                left_out = {**left_out, name: " ".join(str(error).split())[:200] or type(error).__name__}
            else:
                left_out = {other: why for other, why in left_out.items() if other != name}
            result = replace(result, timings=timings, left_out=left_out)
            keep(result)


def _pairs_right(database: Path) -> tuple[float, int]:
    """Return how many pairs of the job's programs the estimate ranks right, and how many pairs there are."""
    try:
        return pairs_right(read_databases([database]), partial(estimated, factors=FITTED))
    except ProgramsError:  # no trial was right
        return 0, 0


def figures_of(results: Sequence[NetworkResult]) -> list[Figure]:
    """Return the means over all networks of a type first, then the figures of each network."""
    found = [one for result in results for one in _figures_of_network(result)]
    return [*means_of(found), *found]


def means_of(found: Sequence[Figure]) -> list[Figure]:
    """Return the mean speed-up of the networks in each type, from the figures of the networks."""
    means = []
    for element_type, (peer, aim) in AIMS.items():
        ratios: dict[str, float | None] = {
            one.subject: one.value
            for one in found
            if (one.metric, one.peer) == (SPEED_UP, peer)
            and (one.subject.partition(IN_TYPE)[2] or "float32") == element_type
        }
        means += mean_figure(SPEED_UP, ratios, "x", of=f"networks in {element_type}", aim=aim, peer=peer)
    return means


def _figures_of_network(result: NetworkResult) -> list[Figure]:
    own = result.timings[TUNED].latency_s
    low, high = own.spread
    notes = [
        f"{result.tuning.job.trials_done} trials in {number(result.tuning.job_s)} s",
        *(
            f"{name}: {number(timings.latency_s.value * 1e3)} ms"
            for name, timings in result.timings.items()
            if name != TUNED
        ),
        *(f"without {name}: {why}" for name, why in result.left_out.items()),
    ]
    found = [
        figure(
            LATENCY,
            own.value * 1e3,
            "ms",
            subject=result.label,
            spread=(low * 1e3, high * 1e3),
            note="; ".join(notes),
        )
    ]
    found += _search_figures(result)
    for peer in (GRAPHS, FASTEST_PEER):
        if (ratio := result.ratio(peer)) is not None:
            aim = at_least(1.0) if peer == AIMS[result.plan.element_type][0] else None
            found.append(figure(SPEED_UP, ratio, "x", peer=peer, subject=result.label, aim=aim))
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
