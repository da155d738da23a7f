"""Run a service and its fleet for twelve hours in compressed time, under faults; check for losses and growth.

    python -m benchmarks.soak --json FILE

Two servers, two schedulers and four workers run as real processes, on their own PostgreSQL and Redis. They
suffer random kills, restarts, cut networks, full disks and stepped clocks. Waits are shorter by one factor
(`tests/faults/soak/compression.py`); clocks run at their usual speed. Candidates run no code of TVM: a
program's latency depends on the program alone, so that every record and every best schedule can be checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.arguments import command_parser
from benchmarks.results.output import Output
from tests.faults.rig import TimedOut
from tests.faults.soak.run import Plan, run
from tests.services import Missing
from worker.settings import usable_cores

HOURS, QUICK_HOURS, SPEED_UP = 12.0, 2.0, 90.0


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 when something was lost, doubled or wrong, or keeps growing."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.soak", argv, args.json, usable_cores())
    hours = args.hours or (QUICK_HOURS if args.quick else HOURS)
    try:
        result = run(Plan(hours, args.speed_up, args.seed), output.say)
    except (Missing, TimedOut) as error:
        output.fail(error)
        return 1
    output.finish(result.figures())
    for name in result.left_out:
        output.say(f"left out: {name}, which this machine doesn't allow")
    for outcome, times in result.accounts.failed.items():
        output.say(f"failed {times} times: {outcome}")
    problems = [*result.mistakes, *filter(None, (level.verdict for level in result.levels))]
    for problem in problems:
        output.fail(problem)
    return int(bool(problems))


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.soak", __doc__, f"{QUICK_HOURS:g} simulated hours")
    parser.add_argument("--hours", type=float, help=f"simulated ones [{HOURS:g}, quick {QUICK_HOURS:g}]")
    parser.add_argument("--speed-up", type=float, default=SPEED_UP, help=f"of time [{SPEED_UP:g}]")
    parser.add_argument("--seed", type=int, default=0, help="of jobs and faults [0]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
