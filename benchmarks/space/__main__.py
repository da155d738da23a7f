"""Compare our space of programs with MetaSchedule's: how dense, how good at its best, how fast to sample.

    python -m benchmarks.space --quick --json FILE

Our random programs are drawn as the search draws them before it has measurements; MetaSchedule's are
traces of its design space with random decisions. All are timed by the same runner with warm caches. The
figures go to FILE, the latencies of the random programs to a file beside it. Nothing else should run on
the machine.
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
# Assumed seconds of a program of either engine, for the first estimate of the time left.
PROGRAM_S = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when an operator could not be measured, 0 otherwise, even if an aim was
    missed."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.space", argv, args.json, args.threads)
    plan = Plan(
        programs=args.programs or (16 if args.quick else 64),
        trials=args.trials or (32 if args.quick else 256),
        threads=args.threads,
        rounds=args.rounds or (5 if args.quick else 10),
        seed=args.seed,
    )
    found: list[OperatorResult] = []

    def measure(name: str) -> None:
        found.append(run_isolated(name, plan.threads, space_run.run, name, plan))
        for error in found[-1].errors:
            output.say(f"  failed: {error}")
        output.write(figures_of(found, plan))
        RANDOM_PROGRAMS.write([one.random_programs() for one in found], args.json)

    names = args.operators or (QUICK if args.quick else list(OPERATORS))
    failures = measure_each(names, 2 * (plan.programs + plan.trials) * PROGRAM_S, measure, output)
    output.show(figures_of(found, plan))
    return int(failures > 0)


def _parser() -> argparse.ArgumentParser:
    parser = engines_parser("benchmarks.space", __doc__, QUICK)
    parser.add_argument("--programs", type=positive, help="drawn at random of each engine [64, quick 16]")
    parser.add_argument("--trials", type=positive, help="of each engine's search [256, quick 32]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
