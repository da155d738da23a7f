"""Fit the analytic estimate's shape factors to measured programs, and test them on others.

    python -m benchmarks.fit PROGRAMS --measure --device-class avx512 --device-class avx2 --json FILE
    python -m benchmarks.fit PROGRAMS --json FILE
    python -m benchmarks.fit --database DATABASE --database DATABASE --json FILE

PROGRAMS is a file of measured programs; --measure adds to it, while nothing else should run on the machine.
The fitted factors belong in search/cost/cost_parameters.py. The figures compare estimates with measurements:
on programs of the fit, on operators or device classes that were left out, and on the layers of
benchmarks/layers.py. Those layers are never part of a fit.

With --database, the programs are those that jobs measured on GPUs, in tunefarm.db of their data folders. The
factors of GPUs are fitted to all networks but one, from values that nothing was fitted to, and tested on that
one. With these factors, the learned model is trained on 64 programs of the others and tested on the same one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.arguments import command_parser, positive
from benchmarks.device_class import CLASSES, add_device_classes, calibrated
from benchmarks.fit import measuring
from benchmarks.fit.databases import read_databases
from benchmarks.fit.fitting import (
    FACTORS,
    Agreement,
    Guess,
    agreement,
    estimated,
    fit,
    pairs_right,
    predicted,
    train_on,
)
from benchmarks.fit.programs import Group, ProgramsError, line_of_device, read
from benchmarks.layers import LAYERS
from benchmarks.results.figures import Aim, Figure, at_least, figure
from benchmarks.results.output import Output
from benchmarks.timing.isolation import measure_each, run_isolated
from search.cost.cost_parameters import FITTED, ShapeFactors
from worker.settings import usable_cores

LAYER_S = 8.0
# The factors of tiled kernels on GPUs, with values to start a fit from: an instruction a cycle, one latency
# for each wait.
GPU_FACTORS = tuple(name for name in FACTORS if name.startswith("gpu_") and name != "gpu_overlap")
UNFITTED = replace(
    FITTED,
    gpu_step_cycles=1.0,
    gpu_load_cycles=1.0,
    gpu_loop_latencies=1.0,
    gpu_unrolled_steps=16.0,
    gpu_fetch_wait=1.0,
    gpu_local_cycles=4.0,
    gpu_unrolled_load=0.05,
    gpu_serial_load=1.0,
    gpu_cache_bytes=64.0,
)
PAIRS_RIGHT, LEARNED_PAIRS_RIGHT = at_least(80), at_least(85)
# The learned model is trained on this many programs of other networks. The figure is the mean of all seeds.
LEARNED_TRIALS, LEARNED_SEEDS = 64, range(5)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if programs could not be measured or read."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.fit", argv, args.json, args.threads)
    if args.databases:
        try:
            output.finish(_networks(read_databases(args.databases), output))
        except ProgramsError as error:
            output.fail(error)
            return 1
        return 0
    if args.programs is None:
        output.fail("there is nothing to fit to: give a file of programs, or --database")
        return 2
    failures = _measure(args, output) if args.measure else 0
    try:
        groups = read(args.programs)
    except ProgramsError as error:
        output.fail(error)
        return 1
    suite = [group for group in groups if group.name not in LAYERS]
    fitted = fit(suite, FITTED, output.say)
    for name, value in asdict(fitted).items():
        output.say(f"    {name}: float = {value:.4g}")
    unseen = [group for group in groups if group.name in LAYERS]
    figures = _figures_by_class("fitted, seen", suite, lambda _: fitted)
    figures += _figures_by_class("fitted, layers never seen", unseen, lambda _: fitted)
    figures += _figures_by_class("as it ships, layers never seen", unseen, lambda _: FITTED)
    if not args.quick:
        figures += _left_out("operator", suite, lambda group: group.operator, output)
        figures += _left_out("device class", suite, lambda group: group.device_class, output)
    output.finish(figures)
    return int(failures > 0)


def _measure(args: argparse.Namespace, output: Output) -> int:
    """Measure every layer on every device class, and add the programs to PROGRAMS. Return the number of
    layers that failed."""
    classes = [one.name for one in args.device_classes or [CLASSES["native"]]]
    devices = {name: run_isolated(name, args.threads, calibrated, name, args.threads) for name in classes}
    with args.programs.open("a") as file:
        for name, device in devices.items():
            print(line_of_device(name, device), file=file)

        def measure(both: str) -> None:
            device_class, layer = both.split(maxsplit=1)
            given = layer, device_class, devices[device_class], args.seed
            for line in run_isolated(layer, args.threads, measuring.run, *given):
                print(line, file=file, flush=True)

        layers = [*measuring.SUITE, *LAYERS]
        return measure_each(
            [f"{name} {layer}" for name in classes for layer in layers], LAYER_S, measure, output
        )


def _left_out(what: str, suite: Sequence[Group], of: Callable[[Group], str], output: Output) -> list[Figure]:
    """Evaluate the estimate of each operator or device class with factors that were fitted to all others."""
    fits: dict[str, ShapeFactors] = {}
    for one in dict.fromkeys(map(of, suite)):
        output.say(f"without {what} {one}")
        fits[one] = fit([group for group in suite if of(group) != one], ShapeFactors(), steps=(1.4,))
    return _figures_by_class(f"fitted without their {what}", suite, lambda group: fits[of(group)])


def _figures_by_class(
    what: str, groups: Sequence[Group], factors: Callable[[Group], ShapeFactors]
) -> list[Figure]:
    """Return the means over the groups of each device class."""
    figures = []
    for name in dict.fromkeys(group.device_class for group in groups):
        found = [agreement(group, factors(group)) for group in groups if group.device_class == name]
        figures += _means(f"{name}, {what} ({len(found)} layers)", found)
    return figures


def _networks(groups: Sequence[Group], output: Output) -> list[Figure]:
    """Return how well the programs of each network are ranked: by the estimate with the shipped factors, by
    the estimate with factors that were fitted to the others, and by the model that learned from the others.
    """
    found = []
    for network in dict.fromkeys(group.operator for group in groups):
        own = [group for group in groups if group.operator == network]
        others = [group for group in groups if group.operator != network]
        found.append(_share(network, "as it ships", own, [partial(estimated, factors=FITTED)], PAIRS_RIGHT))
        if others:
            output.say(f"without {network}")
            fitted = fit(others, UNFITTED, output.say, names=GPU_FACTORS)
            by_estimate = partial(estimated, factors=fitted)
            found.append(_share(network, "fitted to the others", own, [by_estimate], PAIRS_RIGHT))
            by_models = [
                partial(predicted, factors=fitted, model=train_on(others, fitted, LEARNED_TRIALS, seed))
                for seed in LEARNED_SEEDS
            ]
            condition = f"learned from {LEARNED_TRIALS} trials of the others"
            found.append(_share(network, condition, own, by_models, LEARNED_PAIRS_RIGHT))
    return found


def _share(
    network: str, condition: str, groups: Sequence[Group], guesses: Sequence[Guess], aim: Aim
) -> Figure:
    """Return the mean share of pairs that the guesses rank right."""
    counted = [pairs_right(groups, guess) for guess in guesses]
    total = counted[0][1]
    return figure(
        "pairs in the right order",
        100 * statistics.fmean(right for right, _ in counted) / max(total, 1),
        "%",
        subject=network,
        condition=condition,
        count=total,
        aim=aim,
        note=f"{' '.join(str(right) for right, _ in counted)} of {total} pairs",
    )


def _means(what: str, found: Sequence[Agreement]) -> list[Figure]:
    regret = statistics.geometric_mean(one.regret for one in found)
    return [
        figure("rank correlation", statistics.fmean(one.rank for one in found), "", subject=what),
        figure("latency of the program estimated fastest", regret, "x", peer="the fastest", subject=what),
        figure("error of the logarithm", statistics.fmean(one.error for one in found), "", subject=what),
        figure("bias of the logarithm", statistics.fmean(one.bias for one in found), "", subject=what),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "benchmarks.fit", __doc__, "only the fit to all programs, nothing left out in turn"
    )
    parser.add_argument(
        "programs", type=Path, nargs="?", metavar="PROGRAMS", help="the file of measured programs"
    )
    parser.add_argument(
        "--database", action="append", type=Path, dest="databases", help="tunefarm.db of jobs on a GPU"
    )
    parser.add_argument("--measure", action="store_true", help="measure programs and add them first")
    add_device_classes(parser, "of --measure: ")
    parser.add_argument("--threads", type=positive, default=usable_cores(), help="[all cores]")
    parser.add_argument("--seed", type=int, default=0, help="of the searches and the draws [0]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
