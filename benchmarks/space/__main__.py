"""Compares our space of programs with MetaSchedule's: how dense, how good at its best, how fast to sample.

    python -m benchmarks.space --quick --json FILE

The figures go to FILE, the latencies of the random programs to a file beside it. Numbers mean something only
when nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool

from rich.console import Console

from benchmarks.arguments import engines_parser, positive
from benchmarks.engines.ours import EmptySpace
from benchmarks.results import drawn, figures, machine
from benchmarks.results.figures import Results
from benchmarks.space import run as space_run
from benchmarks.space.figures import figures_of
from benchmarks.space.run import Found, Plan
from benchmarks.suite import OPERATORS
from benchmarks.timing.contestants import own_process
from compiler.subgraph import NotCovered

QUICK = ("GMM", "C2D", "softmax")
WIDTH = 160  # of the table where there is no terminal to ask


class Failed(Exception):
    """An operator could not be measured; the message says which and why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when an operator could not be measured, whatever the figures say otherwise."""
    given = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(given)
    command = shlex.join(["python", "-m", "benchmarks.space", *given])
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = machine.describe(args.threads)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    plan = _plan(args)
    found: list[Found] = []
    failures = 0
    for name in args.operators or (QUICK if args.quick else OPERATORS):
        console.print(f"{name} ...", highlight=False)
        try:
            found.append(_measure(name, plan))
        except Failed as error:
            print(f"benchmarks.space: {error}", file=sys.stderr)
            failures += 1
            continue
        for error_text in found[-1].errors:
            console.print(f"  failed: {error_text}", highlight=False, markup=False)
        Results(tuple(figures_of(found, plan)), where, date, command).write(args.json)
        drawn.write([one.drawn() for one in found], drawn.beside(args.json))
    console.print(figures.table(figures_of(found, plan)))
    return int(failures > 0)


def _measure(name: str, plan: Plan) -> Found:
    """In a process of its own, so that a candidate that crashes costs one operator only. Raises Failed."""
    os.environ["TVM_NUM_THREADS"] = str(plan.threads)
    try:
        with own_process() as process:
            return process.submit(space_run.run, name, plan).result()
    except NotCovered as error:
        raise Failed(f"our search does not cover {name}: {error}") from error
    except EmptySpace as error:
        raise Failed(f"our search finds no valid program of {name}: {error}") from error
    except BrokenProcessPool as error:
        raise Failed(f"a candidate of {name} ended the process that timed it") from error


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        programs=args.programs or (16 if args.quick else 64),
        trials=args.trials or (32 if args.quick else 256),
        threads=args.threads,
        rounds=args.rounds or (5 if args.quick else 10),
        seed=args.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = engines_parser("space", __doc__, QUICK)
    parser.add_argument("--programs", type=positive, help="drawn at random of each engine [64, quick 16]")
    parser.add_argument("--trials", type=positive, help="of each engine's search [256, quick 32]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
