"""Plays faults on a running service, again and again: what they cost, and how soon the job goes on.

    python -m benchmarks.faults --quick --json FILE

Server, scheduler and workers are real processes over SQLite; candidates are quick and run no code of TVM.
Some faults need root; those that this machine doesn't allow are named and left out.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks.arguments import add_json, positive
from benchmarks.faults.figures import Found, figures_of
from benchmarks.faults.places import Missing
from benchmarks.faults.plays import Rigs
from benchmarks.faults.rig import GaveUp
from benchmarks.faults.scenarios import SCENARIOS, NotNamed, Scenario, Seen
from benchmarks.results import figures, machine
from benchmarks.results.figures import Results
from worker.settings import usable_cores

RUNS, QUICK_RUNS = 20, 2
WIDTH = 160  # of the table where there is no terminal to ask


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when a play failed or a fault cost anything."""
    given = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(given)
    command = shlex.join(["python", "-m", "benchmarks.faults", *given])
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    where = machine.describe(usable_cores())
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    wanted = [one for one in SCENARIOS if not args.faults or one.name in args.faults]
    found: list[Found] = []
    with Rigs() as rigs:
        for scenario in wanted:
            found.append(_played(scenario, rigs, args.runs or (QUICK_RUNS if args.quick else RUNS), console))
            Results(tuple(figures_of(found)), where, date, command).write(args.json)
    console.print(figures.table(figures_of(found)))
    return int(any(each.reached is False for each in figures_of(found)))


def _played(scenario: Scenario, rigs: Rigs, runs: int, console: Console) -> Found:
    console.print(f"{scenario.name} ...", highlight=False)
    seen: list[Seen] = []
    failed: list[str] = []
    for _ in range(runs):
        try:
            seen.append(rigs.play(scenario))
        except Missing as error:
            console.print(f"  left out: {error}", highlight=False, markup=False)
            return Found(scenario, (), missing=str(error))
        except (GaveUp, NotNamed) as error:
            console.print(f"  failed: {error}", highlight=False, markup=False)
            failed.append(str(error))
    return Found(scenario, seen, failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.split("\n")[0])
    add_json(parser)
    parser.add_argument("--quick", action="store_true", help=f"every fault {QUICK_RUNS} times only")
    parser.add_argument("--runs", type=positive, help=f"of every fault [{RUNS}, quick {QUICK_RUNS}]")
    parser.add_argument(
        "--fault",
        action="append",
        choices=[one.name for one in SCENARIOS],
        dest="faults",
        help="only this one",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
