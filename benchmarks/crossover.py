"""Compare evolution with and without crossover, on layers to which no constant was fitted.

    python -m benchmarks.crossover --json FILE

Every layer evolves with several shares of crossover, from the same seeds, under the analytic estimate. A
figure is the estimated latency of the best program relative to evolution by mutation alone. Nothing is
measured, so the machine may be busy.

Most layers have a single node with variables, and nothing to combine. So their 3x3 convolutions evolve in
Winograd's form too, which has five such nodes.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
import tvm
from tvm import te

from benchmarks.arguments import command_parser
from benchmarks.layers import LAYERS
from benchmarks.results.figures import Figure, at_most, figure
from benchmarks.results.output import Output
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.winograd import convolution
from compiler.workload import normalise
from search.cost.model import CostModel
from search.evolution.evolve import EvolutionConfig, evolve
from search.policy import SearchConfig, TuneContext
from search.rules.space import generate
from worker.settings import usable_cores

SHARES = (0.05, 0.1, 0.2, 0.4)
MUTATION_ALONE = "mutation alone"
SEEDS, QUICK_SEEDS = 10, 2
# By name: rows and columns, input and output channels, tile size.
WINOGRAD = {
    "winograd-56x56x64x64": (56, 64, 64, 4),
    "winograd-28x28x96x208": (28, 96, 208, 4),
    "winograd-14x14x256x256": (14, 256, 256, 2),
    "winograd-13x13x64x256": (13, 64, 256, 2),
}
# The largest allowed ratio of the estimated latency to mutation alone.
AIM = at_most(1.01)

# Estimated seconds of the best program, by layer and seed.
Best = Mapping[tuple[str, int], float]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmarks.crossover", __doc__, "two seeds instead of ten")
    args = parser.parse_args(argv)
    output = Output("benchmarks.crossover", argv, args.json, usable_cores())
    runs = list(product([*LAYERS, *WINOGRAD], range(QUICK_SEEDS if args.quick else SEEDS)))
    with ProcessPoolExecutor(usable_cores()) as processes:
        found = list(processes.map(best_seconds, *zip(*runs, strict=True)))
    best = {
        share: {run: seconds[share] for run, seconds in zip(runs, found, strict=True)}
        for share in (0.0, *SHARES)
    }
    output.finish(list(figures_of(best)))
    return 0


def best_seconds(layer: str, seed: int) -> dict[float, float]:
    """Evolve every sketch of a layer; return the estimated seconds of its best program, by share of
    crossover."""
    device, dag = detect_device(), read_dag(_module(layer))
    task = TuneContext(dag, generate(dag, device), device)
    usual = SearchConfig().untrained_evolution
    found = {}
    for share in (0.0, *SHARES):
        config = EvolutionConfig(usual.population, usual.generations, crossover=share)
        rng = np.random.default_rng(seed)
        evolved = evolve(
            task.sketches, lambda population: task.score(population, CostModel()), [], rng, config
        )
        found[share] = min(scored.seconds.min(initial=np.inf) for scored in evolved)
    return found


def _module(layer: str) -> tvm.IRModule:
    if layer in LAYERS:
        return LAYERS[layer].module()
    size, inputs, outputs, tile = WINOGRAD[layer]
    data = te.placeholder((1, size, size, inputs), name="data")
    weight = te.placeholder((tile + 2, tile + 2, inputs, outputs), name="weight")
    function = te.create_prim_func([data, weight, convolution(data, weight, (1, 1, 1, 1), tile)])
    return normalise(function.with_attr("layout_free_buffers", [1]))


def figures_of(best: Mapping[float, Best]) -> Iterator[Figure]:
    """Yield the geometric means over layers and seeds for each share of crossover: of all layers, and of
    Winograd's only.

    The spread is taken over the seeds' means.
    """
    layers = sorted({layer for layer, _ in best[0.0]})
    several = [layer for layer in layers if layer in WINOGRAD]
    for share, (of, chosen) in product(SHARES, {"layers": layers, "layers by Winograd": several}.items()):
        by_seed = [
            statistics.geometric_mean(best[share][layer, seed] / best[0.0][layer, seed] for layer in chosen)
            for seed in sorted({seed for _, seed in best[share]})
        ]
        low, high = np.quantile(by_seed, [0.1, 0.9])
        yield figure(
            "estimated latency of the best program",
            statistics.geometric_mean(by_seed),
            "x",
            peer=MUTATION_ALONE,
            subject=f"geometric mean of {len(chosen)} {of}",
            condition=f"{share:.0%} of each generation by crossover",
            count=len(chosen),
            aim=AIM,
            spread=(float(low), float(high)),
        )


if __name__ == "__main__":
    sys.exit(main())
