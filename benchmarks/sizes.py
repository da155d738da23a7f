"""Tune a network in several sizes together, and each size alone with as many trials, and compare latencies.

    python -m benchmarks.sizes --quick --json FILE

Each job has an embedded stack with an empty data folder, so that no size alone learns from another. The model
in several sizes and the one of one size are called as `tunefarm_runtime` loads them, in turns.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.arguments import command_parser, positive
from benchmarks.results.figures import Figure, at_most, figure, number, ratio_figure
from benchmarks.results.metrics import TUNED_TOGETHER
from benchmarks.results.output import Output
from benchmarks.timing.contestants import Deployed, ProcessContestant
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings, measure
from examples.networks.convolutional import RESNET18, basic_block, resnet
from examples.networks.scale import Scale
from examples.networks.transformers import encoder
from examples.onnx_builder import Graph
from tunefarm import tune
from worker.settings import usable_cores

NAME = "benchmarks.sizes"
SMALL = Scale(max_blocks=1, divisor=4, size=64, classes=100, frames=4, tokens=64, words=1000)
ENCODER = replace(SMALL, divisor=2)
# The highest latency of a size, relative to a model that was tuned only for it.
AIM = at_most(1.05)


@dataclass(frozen=True)
class Network:
    """A network that `add` builds with one dimension left open in its inputs, and the sizes of that
    dimension."""

    add: Callable[[Graph], None]
    dimension: str
    sizes: tuple[int, ...]

    def make(self, name: str) -> onnx.ModelProto:
        graph = Graph(np.random.default_rng(0))
        self.add(graph)
        return graph.build(name)


def _resnet(graph: Graph) -> None:
    resnet(graph, SMALL, RESNET18, basic_block)
    # It pools over the whole image, so that any size works.
    for dim in graph.inputs[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "side"


NETWORKS: Mapping[str, Network] = {
    "encoder": Network(lambda graph: encoder(graph, ENCODER), "tokens", (32, 128, 256)),
    "resnet": Network(_resnet, "side", (64, 128, 224)),
}


@dataclass(frozen=True)
class Measured:
    """One size: its latency in the model of all sizes, and in the model of this size alone."""

    size: int
    together: Timings
    alone: Timings


@dataclass(frozen=True)
class Compared:
    """A network in its sizes. `together_s` and `alone_s` are the seconds of one job for all sizes, and of one
    job for each."""

    sizes: tuple[Measured, ...]
    trials: int
    together_s: float
    alone_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when a network could not be measured."""
    parser = command_parser(NAME, __doc__, "48 trials for each size, 6 rounds")
    parser.add_argument("--network", action="append", choices=list(NETWORKS), dest="networks")
    parser.add_argument("--trials", type=positive, help="for each size [200, quick 48]")
    parser.add_argument("--rounds", type=positive, help="of interleaved blocks [10, quick 6]")
    args = parser.parse_args(argv)
    trials = args.trials or (48 if args.quick else 200)
    rounds = args.rounds or (6 if args.quick else 10)
    output = Output(NAME, argv, args.json, usable_cores())
    found: list[Figure] = []

    def measure_network(name: str, folder: Path) -> list[Figure]:
        found.extend(figures_of(name, NETWORKS[name], run(name, trials, rounds, folder)))
        return found

    return output.measure_each(args.networks or NETWORKS, measure_network)


def run(name: str, trials: int, rounds: int, folder: Path) -> Compared:
    """Tune and measure a network in an empty `folder`. Raises CommandError and ClientError as `tune` does."""
    network, file = NETWORKS[name], folder / f"{name}.onnx"
    onnx.save(network.make(name), file)
    begun_s = time.monotonic()
    shapes = {network.dimension: network.sizes}
    count = len(network.sizes)
    together = tune(
        file, trials=trials * count, shapes=shapes, output=folder / "together", data=folder / "data"
    )
    between_s = time.monotonic()
    alone = {
        size: tune(
            file,
            trials=trials,
            shapes={network.dimension: (size,)},
            output=folder / f"{size}",
            data=folder / f"data-{size}",
        )
        for size in network.sizes
    }
    end_s = time.monotonic()
    measured = []
    for size, result in alone.items():
        specs = [(dims, str(np.dtype(dtype))) for dims, dtype in _inputs(network.make(name), size)]
        inputs = random_inputs(specs, 1)
        with ExitStack() as processes:
            running = {
                label: processes.enter_context(ProcessContestant(Deployed(output), usable_cores(), inputs))
                for label, output in (("together", together.output), ("alone", result.output))
            }
            timings = measure(running, rounds, Block())
        measured.append(Measured(size, timings["together"], timings["alone"]))
    return Compared(tuple(measured), trials, between_s - begun_s, end_s - between_s)


def _inputs(model: onnx.ModelProto, size: int) -> list[tuple[tuple[int, ...], Any]]:
    """Return the shapes and types of a model's inputs whose open dimensions have this size."""
    return [
        (
            tuple(dim.dim_value or size for dim in value.type.tensor_type.shape.dim),
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in model.graph.input
    ]


def figures_of(name: str, network: Network, compared: Compared) -> list[Figure]:
    found = []
    for each in compared.sizes:
        ratio = each.together.ratio_to(each.alone)
        together_ms, alone_ms = (one.latency_s.value * 1e3 for one in (each.together, each.alone))
        subject = f"{name}, {network.dimension}={each.size}"
        note = f"{number(together_ms)} ms, alone {number(alone_ms)} ms"
        found.append(ratio_figure(TUNED_TOGETHER, ratio, "the size tuned alone", subject, aim=AIM, note=note))
    note = f"alone, one after the other: {number(compared.alone_s)} s; {compared.trials} trials for each size"
    whole = figure("time for all sizes together", compared.together_s, "s", subject=name, note=note)
    return [*found, whole]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())
