"""Compares our space of programs with MetaSchedule's: how dense, how good at its best, how fast to sample.

    python -m benchmarks.space --quick --json FILE

The figures go to FILE, the latencies of the random programs to a file beside it. Numbers mean something only
when nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.arguments import engines_parser, positive
from benchmarks.results.output import Output
from benchmarks.results.random_programs import RANDOM_PROGRAMS
from benchmarks.space import run as space_run
from benchmarks.space.figures import figures_of
from benchmarks.space.run import OperatorResult, Plan
from benchmarks.suite import OPERATORS
from benchmarks.timing.isolation import measure_each, run_isolated

QUICK = ("GMM", "C2D", "softmax")
# For the first word on how long it will take: seconds of a program, whoever's, drawn or searched.
PROGRAM_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when an operator could not be measured, whatever the figures say otherwise."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.space", argv, args.json, args.threads)
    plan = _plan(args)
    found: list[OperatorResult] = []

    def measure(name: str) -> None:
        found.append(run_isolated(name, plan.threads, space_run.run, name, plan))
        for error in found[-1].errors:
            output.say(f"  failed: {error}")
        output.write(figures_of(found, plan))
        RANDOM_PROGRAMS.write([one.drawn() for one in found], args.json)

    names = args.operators or (QUICK if args.quick else list(OPERATORS))
    failures = measure_each(names, 2 * (plan.programs + plan.trials) * PROGRAM_S, measure, output)
    output.show(figures_of(found, plan))
    return int(failures > 0)


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        programs=args.programs or (16 if args.quick else 64),
        trials=args.trials or (32 if args.quick else 256),
        threads=args.threads,
        rounds=args.rounds or (5 if args.quick else 10),
        seed=args.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = engines_parser("benchmarks.space", __doc__, QUICK)
    parser.add_argument("--programs", type=positive, help="drawn at random of each engine [64, quick 16]")
    parser.add_argument("--trials", type=positive, help="of each engine's search [256, quick 32]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
