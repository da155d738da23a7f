"""Inject faults into a running service, many times each. Report lost and repeated trials, and the time until
the job continues.

    python -m benchmarks.faults --quick --json FILE

`tests/faults` has the scenarios and their figures. Server, scheduler and workers are real processes with
SQLite. Candidates are quick and don't use TVM. Some faults need root. Faults that this machine doesn't allow
are listed and left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.arguments import command_parser, positive
from benchmarks.results.output import Output
from tests.faults.environments import Unsupported
from tests.faults.figures import ScenarioResult, figures_of
from tests.faults.rig import TimedOut
from tests.faults.rigs import Rigs
from tests.faults.scenarios import SCENARIOS, NotReported, RunResult, Scenario
from worker.settings import usable_cores

RUNS, QUICK_RUNS = 20, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a run failed, or if a fault lost or repeated a trial."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.faults", argv, args.json, usable_cores())
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    results: list[ScenarioResult] = []
    with Rigs() as rigs:
        for scenario in SCENARIOS:
            if not args.faults or scenario.name in args.faults:
                results.append(_run_repeatedly(scenario, rigs, runs, output))
                output.write(figures_of(results))
    output.show(figures_of(results))
    return int(any(figure.reached is False for figure in figures_of(results)))


def _run_repeatedly(scenario: Scenario, rigs: Rigs, runs: int, output: Output) -> ScenarioResult:
    output.say(f"{scenario.name} ...")
    finished: list[RunResult] = []
    failed: list[str] = []
    for _ in range(runs):
        try:
            finished.append(rigs.run(scenario))
        except Unsupported as error:
            output.say(f"  left out: {error}")
            return ScenarioResult(scenario, (), unsupported=str(error))
        except (TimedOut, NotReported) as error:
            output.say(f"  failed: {error}")
            failed.append(str(error))
    return ScenarioResult(scenario, finished, failed)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.faults", __doc__, f"run every scenario only {QUICK_RUNS} times")
    parser.add_argument("--runs", type=positive, help=f"runs of every scenario [{RUNS}, quick {QUICK_RUNS}]")
    parser.add_argument(
        "--fault",
        action="append",
        choices=[scenario.name for scenario in SCENARIOS],
        dest="faults",
        help="run only this scenario",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
