"""Plays faults on a running service, again and again: what they cost, and how soon the job goes on.

    python -m benchmarks.faults --quick --json FILE

Server, scheduler and workers are real processes over SQLite; candidates are quick and run no code of TVM.
Some faults need root; those that this machine doesn't allow are named and left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.arguments import command_parser, positive
from benchmarks.faults.figures import Found, figures_of
from benchmarks.faults.places import Missing
from benchmarks.faults.plays import Rigs
from benchmarks.faults.rig import GaveUp
from benchmarks.faults.scenarios import SCENARIOS, NotNamed, Scenario, Seen
from benchmarks.results.output import Output
from worker.settings import usable_cores

RUNS, QUICK_RUNS = 20, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when a play failed or a fault cost anything."""
    args = _parser().parse_args(argv)
    output = Output("faults", argv, args.json, usable_cores())
    wanted = [one for one in SCENARIOS if not args.faults or one.name in args.faults]
    found: list[Found] = []
    with Rigs() as rigs:
        for scenario in wanted:
            found.append(_played(scenario, rigs, args.runs or (QUICK_RUNS if args.quick else RUNS), output))
            output.write(figures_of(found))
    output.show(figures_of(found))
    return int(any(each.reached is False for each in figures_of(found)))


def _played(scenario: Scenario, rigs: Rigs, runs: int, output: Output) -> Found:
    output.say(f"{scenario.name} ...")
    seen: list[Seen] = []
    failed: list[str] = []
    for _ in range(runs):
        try:
            seen.append(rigs.play(scenario))
        except Missing as error:
            output.say(f"  left out: {error}")
            return Found(scenario, (), missing=str(error))
        except (GaveUp, NotNamed) as error:
            output.say(f"  failed: {error}")
            failed.append(str(error))
    return Found(scenario, seen, failed)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("faults", __doc__, f"every fault {QUICK_RUNS} times only")
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
