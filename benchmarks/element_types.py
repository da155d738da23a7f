"""Tune networks in float32, in bytes and in half precision, and compare each with other runtimes.

int8 has weights of 8 bits, int8w7 of 7 bits, which processors without VNNI multiply faster.

    python -m benchmarks.element_types --network resnet18 --json FILE

ONNX Runtime's static quantization makes the models of bytes. Inputs and outputs are float32 in all types.
Everything takes turns; nothing else should run on the machine.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto
from rich.console import Console

from benchmarks.arguments import command_parser, positive
from benchmarks.device_class import NATIVE
from benchmarks.networks.peers import ONNXRUNTIME, peers_of
from benchmarks.networks.plan import SEEDS
from benchmarks.networks.session import session
from benchmarks.results import machine
from benchmarks.results.figures import Aim, Figure, at_most, figure, number, ratio_figure
from benchmarks.results.metrics import FASTEST_PEER, LARGEST_DIFFERENCE, LATENCY
from benchmarks.results.output import Output
from benchmarks.timing.contestants import Arrays, ProcessContestant, TvmLibrary
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings, measure
from examples import make_models
from examples.networks.scale import FULL, TINY, Scale
from examples.onnx_builder import Graph
from examples.quantization import narrowed, quantize
from worker.settings import usable_cores

NAME = "benchmarks.element_types"
# The network and scale by label. bert_base-2-layers has two of BERT's twelve equal layers.
NETWORKS: Mapping[str, tuple[str, Scale]] = {
    **{
        name: (name, FULL)
        for name in ("resnet18", "mobilenet_v2", "resnet50", "efficientnet_b0", "bert_base")
    },
    "bert_base-2-layers": ("bert_base", replace(FULL, max_blocks=1)),
}
FLOAT32 = "float32"
TYPES: Mapping[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    FLOAT32: lambda model: model,
    "int8": quantize,
    "int8w7": lambda model: quantize(model, reduce_range=True),
    "float16": lambda model: narrowed(model, TensorProto.FLOAT16),
    "bfloat16": lambda model: narrowed(model, TensorProto.BFLOAT16),
}
# Latency relative to float32: an aim, for processors with one of these features.
FLOAT32_AIMS: Mapping[str, tuple[Aim, frozenset[str]]] = {
    "int8": (at_most(0.4), frozenset({"avx512_vnni", "avx_vnni", "asimddp"})),
    "bfloat16": (at_most(0.7), frozenset({"avx512_bf16"})),
}
FASTEST_PEER_AIMS = {"int8": at_most(1.0), "int8w7": at_most(1.0)}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A network of NETWORKS and the types it is tuned in, each with at most `trials` in `minutes`."""

    label: str
    tiny: bool
    types: Sequence[str]
    trials: int
    minutes: float
    threads: int
    rounds: int


@dataclass(frozen=True)
class Measured:
    """A network in one type: our timings, and the timings of each peer that can run the type.

    `deviation` is the largest difference from ONNX Runtime's outputs, relative to the largest output. Where
    ONNX Runtime has no kernels of the type, its outputs in float32 are the reference.
    """

    trials: int
    ours: Timings
    theirs: Mapping[str, Timings]
    deviation: float


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when a network could not be measured."""
    parser = command_parser(NAME, __doc__)
    parser.add_argument("--network", action="append", choices=list(NETWORKS), dest="networks")
    parser.add_argument(
        "--type", action="append", choices=[*TYPES][1:], dest="types", help="beside float32 [all of them]"
    )
    parser.add_argument("--trials", type=positive, default=200, help="for every network and type [200]")
    parser.add_argument("--minutes", type=float, default=1.5, help="at most, for each of them [1.5]")
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="for everyone [all cores]")
    parser.add_argument("--rounds", type=positive, default=10, help="of interleaved blocks [10]")
    parser.add_argument("--tiny", action="store_true", help="small networks of the same kind, to try it out")
    args = parser.parse_args(argv)
    output = Output(NAME, argv, args.json, args.threads)
    found: list[Figure] = []

    def measure_network(network: str, folder: Path) -> list[Figure]:
        plan = Plan(
            label=network,
            tiny=args.tiny,
            types=(FLOAT32, *(args.types or [*TYPES][1:])),
            trials=args.trials,
            minutes=args.minutes,
            threads=args.threads,
            rounds=args.rounds,
        )
        label = f"{network}-tiny" if args.tiny else network
        found.extend(figures_of(label, run(plan, folder, output.console)))
        return found

    return output.measure_each(args.networks or NETWORKS, measure_network)


def run(plan: Plan, folder: Path, console: Console) -> dict[str, Measured]:
    """Tune and measure a network in every type, in an empty `folder`. Raises CommandError or ClientError as
    `Session.tune` does."""
    name, scale = NETWORKS[plan.label]
    graph = Graph(np.random.default_rng(0))
    make_models.NETWORKS[name](graph, TINY if plan.tiny else scale)
    model = graph.build(plan.label)
    threads, files = plan.threads, {}
    for name in plan.types:
        files[name] = folder / f"{name}.onnx"
        onnx.save(TYPES[name](model), files[name])
    with session(folder / "data", threads, NATIVE, console) as stack:
        tunings = {
            name: stack.tune(file, plan.trials, folder / name, minutes=plan.minutes)
            for name, file in files.items()
        }
    specs = [(one.shape, one.dtype) for one in tunings[FLOAT32].manifest.inputs]
    inputs = [random_inputs(specs, seed) for seed in SEEDS]
    with ExitStack() as processes:
        ours = {
            name: processes.enter_context(ProcessContestant(TvmLibrary(tuning.library), threads, inputs[0]))
            for name, tuning in tunings.items()
        }
        theirs: dict[tuple[str, str], ProcessContestant] = {}
        for name, file in files.items():
            for peer in peers_of(file, NATIVE, {}):
                try:
                    contestant = ProcessContestant(peer.file, threads, inputs[0])
                except Exception as error:  # ONNX Runtime's own exceptions, which depend on the type
                    if name == FLOAT32:
                        raise
                    console.print(f"{name}: {peer.name} can't run it: {error}", markup=False)
                else:
                    theirs[name, peer.name] = processes.enter_context(contestant)
        running = {f"ours {name}": each for name, each in ours.items()}
        running |= {f"{peer} {name}": each for (name, peer), each in theirs.items()}
        timings = measure(running, plan.rounds, Block())
        references = {name: theirs.get((name, ONNXRUNTIME), theirs[FLOAT32, ONNXRUNTIME]) for name in ours}
        return {
            name: Measured(
                tunings[name].job.trials_done,
                timings[f"ours {name}"],
                {peer: timings[f"{peer} {name}"] for each, peer in theirs if each == name},
                max(_difference(own.outputs(each), references[name].outputs(each)) for each in inputs),
            )
            for name, own in ours.items()
        }


def _difference(found: Arrays, wanted: Arrays) -> float:
    """Return the largest difference of any output, relative to its largest value."""
    return max(
        float(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max())
        for a, b in zip(found, wanted, strict=True)
    )


def figures_of(label: str, measured: Mapping[str, Measured]) -> list[Figure]:
    found = []
    plain = measured[FLOAT32].ours
    for name, each in measured.items():
        latency = each.ours.latency_s
        low_s, high_s = latency.spread
        spread_ms = (low_s * 1e3, high_s * 1e3)
        after = f"after {each.trials} trials"
        found.append(
            figure(
                LATENCY,
                latency.value * 1e3,
                "ms",
                subject=label,
                condition=name,
                spread=spread_ms,
                note=after,
            )
        )
        if name != FLOAT32:
            ratio = each.ours.ratio_to(plain)
            aim, features = FLOAT32_AIMS.get(name, (None, frozenset()))
            if not features & machine.flags():
                aim = None
            note = f"tunefarm's float32: {number(plain.latency_s.value * 1e3)} ms"
            found.append(ratio_figure(LATENCY, ratio, FLOAT32, label, condition=name, aim=aim, note=note))
        for peer, timings in each.theirs.items():
            note = f"{peer} on the same file: {number(timings.latency_s.value * 1e3)} ms"
            found.append(
                ratio_figure(LATENCY, each.ours.ratio_to(timings), peer, label, condition=name, note=note)
            )
        if each.theirs:
            fastest = min(each.theirs, key=lambda peer: each.theirs[peer].latency_s.value)
            ratio = each.ours.ratio_to(each.theirs[fastest])
            aim = FASTEST_PEER_AIMS.get(name)
            found.append(
                ratio_figure(LATENCY, ratio, FASTEST_PEER, label, condition=name, aim=aim, note=fastest)
            )
        reference = "" if ONNXRUNTIME in each.theirs else "outputs of ONNX Runtime in float32"
        found.append(
            figure(
                LARGEST_DIFFERENCE,
                each.deviation,
                "",
                peer="the largest output",
                subject=label,
                condition=name,
                note=reference,
            )
        )
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())
