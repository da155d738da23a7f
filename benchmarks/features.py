"""Holds our description of programs against TVM's PerStoreFeature of the same programs, lowered.

    python -m benchmarks.features --quick --json FILE

A figure for every group of quantities: how many of the programs both describe alike, over all operators. The
statement that is compared is the one that computes most.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tvm
from numpy.typing import NDArray
from rich.progress import track
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

from benchmarks.arguments import add_operator, command_parser, positive
from benchmarks.results.figures import Figure, figure
from benchmarks.results.output import Output
from benchmarks.suite import OPERATORS, Operator
from compiler.lowering.trace import LoweringError, lower, replay
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target
from core.device import Device
from search.cost.store_features import GROUPS, describe
from search.cost.stores import stores_of
from search.programs.annotate import sample
from search.programs.nest import Floats
from search.programs.program import Program, gather
from search.sketches.space import generate
from worker.settings import usable_cores

# Differences of the logarithms that rounding explains: seven per cent of the quantity.
TOLERANCE = 0.1
QUICK_PROGRAMS, PROGRAMS = 50, 1000
# [programs]: whether both describe a group of quantities alike.
Agreement = Mapping[str, NDArray[np.bool_]]


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    count = args.programs or (QUICK_PROGRAMS if args.quick else PROGRAMS)
    device = detect_device(usable_cores())
    output = Output("features", argv, args.json, device.cores)
    names = args.operators or list(OPERATORS)
    found = {
        name: agreement(OPERATORS[name], device, count, args.seed)
        for name in track(names, description="describing", disable=not sys.stderr.isatty())
    }
    output.finish(figures_of(found))
    return 0


def agreement(operator: Operator, device: Device, count: int, seed: int) -> Agreement:
    """Of `count` random programs of an operator's benchmark shape, those that TVM lowers."""
    module = operator.module(operator.benchmark)
    programs = list(_random(module, device, count, np.random.default_rng(seed)))
    schedules = [_schedule(module, program, device) for program in programs]
    lowered = [(p, s) for p, s in zip(programs, schedules, strict=True) if s is not None]
    theirs = _theirs(module, device, [schedule for _, schedule in lowered])
    ours = np.array([_ours(program, device) for program, _ in lowered])
    ends = np.cumsum(list(GROUPS.values()))
    return {
        name: _alike(ours[:, end - width : end], theirs[:, end - width : end])
        for (name, width), end in zip(GROUPS.items(), ends, strict=True)
    }


def _alike(ours: Floats, theirs: Floats) -> NDArray[np.bool_]:
    return np.asarray((np.abs(ours - theirs) <= TOLERANCE).all(axis=1))


def figures_of(found: Mapping[str, Agreement]) -> list[Figure]:
    """Per group of quantities, those of all buffers of a statement together."""
    shares: dict[str, list[float]] = defaultdict(list)
    for alike in found.values():
        for name, programs in alike.items():
            shares[name.partition(": ")[2] or name].append(float(programs.mean()))
    peer = "TVM's PerStoreFeature"
    return [
        figure(f"programs described alike: {name}", 100 * float(np.mean(each)), "%", peer=peer)
        for name, each in shares.items()
    ]


def _random(module: tvm.IRModule, device: Device, count: int, rng: np.random.Generator) -> Iterator[Program]:
    sketches = generate(read_dag(module), device)
    for number in range(count):
        population = sample(sketches[number % len(sketches)], 16, rng)
        if len(population):
            yield population.program(int(rng.integers(len(population))))


def _schedule(module: tvm.IRModule, program: Program, device: Device) -> Schedule | None:
    try:
        return replay(module, lower(module, program, device))
    except LoweringError:
        return None


def _theirs(module: tvm.IRModule, device: Device, schedules: Sequence[Schedule]) -> Floats:
    """[programs, WIDTH]: of the statement with most arithmetic."""
    context = TuneContext(module, target=parse_target(device.target))
    candidates = [MeasureCandidate(schedule, []) for schedule in schedules]
    described = [one.numpy() for one in PerStoreFeature().extract_from(context, candidates)]
    return np.array([_heaviest(rows) for rows in described])


def _ours(program: Program, device: Device) -> Floats:
    """[WIDTH]: of the statement with most arithmetic."""
    stores = [store for store in stores_of(gather([program]), device) if store.present[0]]
    return _heaviest(np.array([describe(program.sketch.dag, store)[0] for store in stores]))


def _heaviest(rows: Floats) -> Floats:
    """The row with most operations, and most iterations among those."""
    operations = rows[:, : GROUPS["floating point"]].max(axis=1)
    return np.asarray(rows[np.lexsort((rows[:, -3], operations))[-1]])


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("features", __doc__, f"{QUICK_PROGRAMS} programs of each operator")
    add_operator(parser)
    parser.add_argument("--programs", type=positive, help=f"of each operator [{PROGRAMS}]")
    parser.add_argument("--seed", type=int, default=0, help="of the random programs [0]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
