"""Compares our search with MetaSchedule's: how soon it is as good, how good after few trials, how fast.

    python -m benchmarks.operators --quick --json FILE
    python -m benchmarks.operators --ablation --json FILE

The figures go to FILE, the curves of all searches to a file beside it. Numbers mean something only when
nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.arguments import engines_parser, positive
from benchmarks.operators import ablation, libraries
from benchmarks.operators import figures as operators_figures
from benchmarks.operators import run as operators_run
from benchmarks.operators.run import Found, Plan
from benchmarks.results import figures, machine, searches
from benchmarks.results.figures import Figure, Results
from benchmarks.results.searches import Search
from benchmarks.suite import OPERATORS
from benchmarks.timing.contestants import own_process
from benchmarks.timing.finals import Side
from compiler.subgraph import NotCovered

PAPER = tuple(OPERATORS)[:12]  # the suite without what transformers add
QUICK = ("GMM", "C2D", "DEP")
WIDTH = 160  # of the table where there is no terminal to ask
# For the first word on how long it will take: seconds of a trial of MetaSchedule's and of one of ours.
THEIR_TRIAL_S, OUR_TRIAL_S, FINALS_S = 1.0, 0.1, 40.0

Result = TypeVar("Result")


class Failed(Exception):
    """An operator could not be measured; the message says which and why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when an operator could not be measured, whatever the figures say otherwise."""
    given = sys.argv[1:] if argv is None else argv
    parser = _parser()
    args = parser.parse_args(given)
    if args.own_trials is not None and args.own_trials < _trials(args):
        parser.error(f"--own-trials are at least the {_trials(args)} of both engines")
    output = _Output(args.json, shlex.join(["python", "-m", "benchmarks.operators", *given]), args.threads)
    names = args.operators or (QUICK if args.quick else PAPER)
    if args.ablation:
        return _ablate(names, args, output)
    return _compare(names, _plan(args), output)


class _Output:
    """Where figures, curves and words go; figures are written anew after every operator."""

    def __init__(self, file: Path, command: str, threads: int) -> None:
        self.console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
        self._file = file
        self._command = command
        self._date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._where = machine.describe(threads)

    def write(self, found: Sequence[Figure], curves: Sequence[Search]) -> None:
        Results(tuple(found), self._where, self._date, self._command).write(self._file)
        searches.write(curves, searches.beside(self._file))

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _compare(names: Sequence[str], plan: Plan, output: _Output) -> int:
    found: list[Found] = []
    for absent in libraries.missing():
        output.say(f"{absent} is not installed and not compared with")

    def measure(name: str) -> None:
        found.append(_apart(name, plan.threads, operators_run.run, name, plan))
        for error in found[-1].errors:
            output.say(f"  {name}: {error}")
        curves = [search for one in found for search in one.searches]
        output.write(operators_figures.figures_of(found, plan), curves)

    failures = _each(names, expected_s(plan), measure, output)
    output.console.print(figures.table(operators_figures.figures_of(found, plan)))
    return int(failures > 0)


def _ablate(names: Sequence[str], args: argparse.Namespace, output: _Output) -> int:
    trials = _trials(args)
    rounds = _rounds(args)
    found: list[Side] = []

    def measure(name: str) -> None:
        found.extend(_apart(name, args.threads, ablation.run, name, trials, rounds, args.threads, args.seed))
        output.write(ablation.figures_of(found, trials), [side.search for side in found])

    failures = _each(names, len(ablation.VARIANTS) * trials * OUR_TRIAL_S, measure, output)
    output.console.print(figures.table(ablation.figures_of(found, trials)))
    return int(failures > 0)


def _each(
    names: Sequence[str],
    expected: float,
    measure: Callable[[str], None],
    output: _Output,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures every operator, saying how long is left; how many could not be measured."""
    failures = 0
    start_s = clock()
    for done, name in enumerate(names):
        each_s = (clock() - start_s) / done if done else expected
        left_min = max(1, round(each_s * (len(names) - done) / 60))
        output.say(f"{name} ({done + 1} of {len(names)}, about {left_min} min left)")
        try:
            measure(name)
        except Failed as error:
            print(f"benchmarks.operators: {error}", file=sys.stderr)
            failures += 1
    return failures


def _apart(name: str, threads: int, run: Callable[..., Result], *given: object) -> Result:
    """In a process of its own, so that a candidate that crashes costs one operator only. Raises Failed."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    try:
        with own_process() as process:
            return process.submit(run, *given).result()
    except NotCovered as error:
        raise Failed(f"our search does not cover {name}: {error}") from error
    except BrokenProcessPool as error:
        raise Failed(f"a candidate of {name} ended the process that timed it") from error
    except RuntimeError as error:
        raise Failed(f"{name} could not be measured: {error}") from error


def expected_s(plan: Plan) -> float:
    """Seconds of one operator, before any was measured."""
    own = plan.own_trials + plan.trials + 3 * plan.trials / 4
    return plan.trials * THEIR_TRIAL_S + own * OUR_TRIAL_S + FINALS_S


def _trials(args: argparse.Namespace) -> int:
    return int(args.trials or (64 if args.quick else 256))


def _rounds(args: argparse.Namespace) -> int:
    return int(args.rounds or (5 if args.quick else 10))


def _plan(args: argparse.Namespace) -> Plan:
    trials = _trials(args)
    return Plan(
        trials=trials,
        own_trials=args.own_trials or trials,
        threads=args.threads,
        rounds=_rounds(args),
        seed=args.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = engines_parser("operators", __doc__, QUICK)
    parser.add_argument(
        "--ablation", action="store_true", help="compare our search with itself, without a part at a time"
    )
    parser.add_argument("--trials", type=positive, help="of each engine's search [256, quick 64]")
    parser.add_argument("--own-trials", type=positive, help="our search goes on to so many [as --trials]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
