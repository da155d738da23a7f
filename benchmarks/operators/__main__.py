"""Compare our search with MetaSchedule's: time to its result, quality after few trials, trials a second.

    python -m benchmarks.operators --quick --json FILE
    python -m benchmarks.operators --ablation --json FILE
    python -m benchmarks.operators --settled --json FILE
    python -m benchmarks.operators --unseen --device-class avx2 [--resume] --json FILE

Both engines search an operator with as many trials and threads, one after the other. MetaSchedule runs with
its defaults and a longer time limit for builds. Its time ends with its last record. The best programs of all
searches are then built again and timed in turns. The figures go to FILE, and the curves of all searches to a
file beside it. All results of unseen layers go there, too, and `--resume` measures missing ones. Nothing else
should run on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.arguments import engines_parser, positive
from benchmarks.device_class import CLASSES, add_device_classes, calibrated
from benchmarks.layers import LAYERS
from benchmarks.operators import ablation, libraries, settled, unseen
from benchmarks.operators import run as operators_run
from benchmarks.operators.figures import figures_of
from benchmarks.operators.run import OperatorResult, Plan
from benchmarks.results.figures import Figure
from benchmarks.results.output import Output
from benchmarks.results.searches import SEARCHES, Search
from benchmarks.suite import OPERATORS
from benchmarks.timing.finals import SearchResult
from benchmarks.timing.isolation import measure_each, run_isolated

PAPER = tuple(OPERATORS)[:12]  # the suite without the operators of transformers
# Without convolutions, because Halide takes minutes to schedule them.
QUICK = ("GMM", "C1D", "DEP")
TRIALS, QUICK_TRIALS = 256, 64
# The assumed seconds of a trial of MetaSchedule and of ours, for the first estimate of the remaining time.
THEIR_TRIAL_S, OUR_TRIAL_S, FINALS_S = 1.0, 0.1, 40.0


@dataclass(frozen=True)
class OwnComparison:
    """A comparison of our search with itself: one operator's run, the figures, searches of an operator,
    trials."""

    run: Callable[..., Sequence[SearchResult]]
    figures_of: Callable[[Sequence[SearchResult], int], list[Figure]]
    searches: int
    trials: int = TRIALS
    quick_trials: int = QUICK_TRIALS


ABLATION = OwnComparison(ablation.run, ablation.figures_of, len(ablation.VARIANTS))
SETTLED = OwnComparison(settled.run, settled.figures_of, 1, trials=settled.SETTLED_OF, quick_trials=256)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if an operator could not be measured. Missed aims don't count."""
    args = _parser().parse_args(argv)
    args.rounds = args.rounds or (5 if args.quick else 10)
    output = Output("benchmarks.operators", argv, args.json, args.threads)
    if args.unseen:
        return _compare_on_layers(args, output)
    names = args.operators or (QUICK if args.quick else PAPER)
    if args.alone:
        return _compare_with_itself(args.alone, names, args, output)
    trials = args.trials or (QUICK_TRIALS if args.quick else TRIALS)
    return _compare_on_operators(names, Plan(trials, args.threads, args.rounds, args.seed), output)


def _compare_on_operators(names: Sequence[str], plan: Plan, output: Output) -> int:
    results: list[OperatorResult] = []
    for absent in libraries.missing():
        output.say(f"{absent} is not installed and not compared with")

    def measure(name: str) -> None:
        results.append(run_isolated(name, plan.threads, operators_run.run, name, plan))
        for error in results[-1].errors:
            output.say(f"  {name}: {error}")
        _write(output, figures_of(results, plan), [search for one in results for search in one.searches])

    failures = measure_each(names, expected_s(plan), measure, output)
    output.show(figures_of(results, plan))
    return int(failures > 0)


def _compare_with_itself(
    comparison: OwnComparison, names: Sequence[str], args: argparse.Namespace, output: Output
) -> int:
    trials = args.trials or (comparison.quick_trials if args.quick else comparison.trials)
    results: list[SearchResult] = []

    def measure(name: str) -> None:
        given = name, trials, args.rounds, args.threads, args.seed
        results.extend(run_isolated(name, args.threads, comparison.run, *given))
        _write(output, comparison.figures_of(results, trials), [result.curve for result in results])

    failures = measure_each(names, comparison.searches * trials * OUR_TRIAL_S, measure, output)
    output.show(comparison.figures_of(results, trials))
    return int(failures > 0)


def _compare_on_layers(args: argparse.Namespace, output: Output) -> int:
    """Compare the engines on every layer and every requested device class."""
    trials = args.trials or unseen.TRIALS
    layers = args.layers or (tuple(LAYERS)[:: len(LAYERS) // 3] if args.quick else tuple(LAYERS))
    classes = [one.name for one in args.device_classes or [CLASSES["native"]]]
    results = list(unseen.RESULTS.read(output.file)) if args.resume else []
    measured = {(one.device_class, one.layer) for one in results}
    missing = [(name, layer) for name in classes for layer in layers if (name, layer) not in measured]
    devices = {
        name: run_isolated(name, args.threads, calibrated, name, args.threads)
        for name in dict.fromkeys(name for name, _ in missing)
    }

    def measure(both: str) -> None:
        device_class, layer = both.split(maxsplit=1)
        given = layer, device_class, devices[device_class], trials, args.rounds, args.seed
        results.append(run_isolated(layer, args.threads, unseen.run, *given))
        output.write(unseen.figures_of(results, trials))
        unseen.RESULTS.write(results, output.file)

    expected = trials * (THEIR_TRIAL_S + OUR_TRIAL_S) + FINALS_S / 4
    failures = measure_each([" ".join(both) for both in missing], expected, measure, output)
    output.show(unseen.figures_of(results, trials))
    return int(failures > 0)


def _write(output: Output, figures: Sequence[Figure], curves: Sequence[Search]) -> None:
    """Replace both files, so that a run that is interrupted leaves what it has measured."""
    output.write(figures)
    SEARCHES.write(curves, output.file)


def expected_s(plan: Plan) -> float:
    """Estimate the seconds of an operator before the first measurement."""
    own = 2 * plan.trials + 3 * plan.trials / 4
    return plan.trials * THEIR_TRIAL_S + own * OUR_TRIAL_S + FINALS_S


def _parser() -> argparse.ArgumentParser:
    parser = engines_parser("benchmarks.operators", __doc__, QUICK)
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--ablation",
        action="store_const",
        const=ABLATION,
        dest="alone",
        help="compare our search with itself, without one part at a time",
    )
    alone.add_argument(
        "--settled",
        action="store_const",
        const=SETTLED,
        dest="alone",
        help="compare our search with itself after a thousand trials",
    )
    alone.add_argument(
        "--unseen",
        action="store_true",
        help="compare with MetaSchedule on layers that the estimate was not fitted to",
    )
    parser.add_argument(
        "--layer", action="append", choices=list(LAYERS), dest="layers", help="of --unseen, only this one"
    )
    parser.add_argument(
        "--resume", action="store_true", help="of --unseen, keep the layers that FILE has from this machine"
    )
    add_device_classes(parser, "of --unseen: ")
    trials = f"of every search [{TRIALS}, quick {QUICK_TRIALS}; settled {SETTLED.trials}, quick 256]"
    parser.add_argument("--trials", type=positive, help=trials)
    return parser


if __name__ == "__main__":
    sys.exit(main())
