"""Compares our search with MetaSchedule's: how soon it is as good, how good after few trials, how fast.

    python -m benchmarks.operators --quick --json FILE
    python -m benchmarks.operators --ablation --json FILE
    python -m benchmarks.operators --settled --json FILE
    python -m benchmarks.operators --unseen --device-class avx2 --json FILE

The figures go to FILE, the curves of all searches to a file beside it. Numbers mean something only when
nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.arguments import engines_parser, positive
from benchmarks.device_class import CLASSES, calibrated, device_class
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

PAPER = tuple(OPERATORS)[:12]  # the suite without what transformers add
# Without convolutions that Halide takes minutes to schedule.
QUICK = ("GMM", "C1D", "DEP")
TRIALS, QUICK_TRIALS = 256, 64
# For the first word on how long it will take: seconds of a trial of MetaSchedule's and of one of ours.
THEIR_TRIAL_S, OUR_TRIAL_S, FINALS_S = 1.0, 0.1, 40.0


@dataclass(frozen=True)
class Alone:
    """What our search is compared with itself for: how an operator is measured, what follows from all, how
    many searches an operator takes, and of how many trials."""

    run: Callable[..., Sequence[SearchResult]]
    figures_of: Callable[[Sequence[SearchResult], int], list[Figure]]
    searches: int
    trials: int = TRIALS
    quick_trials: int = QUICK_TRIALS


ABLATION = Alone(ablation.run, ablation.figures_of, len(ablation.VARIANTS))
SETTLED = Alone(settled.run, settled.figures_of, 1, trials=settled.SETTLED_OF, quick_trials=256)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 when an operator could not be measured, whatever the figures say otherwise."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.operators", argv, args.json, args.threads)
    if args.unseen:
        return _unseen(args, output)
    names = args.operators or (QUICK if args.quick else PAPER)
    if args.alone:
        return _alone(args.alone, names, args, output)
    return _compare(names, _plan(args), output)


def _compare(names: Sequence[str], plan: Plan, output: Output) -> int:
    found: list[OperatorResult] = []
    for absent in libraries.missing():
        output.say(f"{absent} is not installed and not compared with")

    def measure(name: str) -> None:
        found.append(run_isolated(name, plan.threads, operators_run.run, name, plan))
        for error in found[-1].errors:
            output.say(f"  {name}: {error}")
        curves = [search for one in found for search in one.searches]
        _keep(output, figures_of(found, plan), curves)

    failures = measure_each(names, expected_s(plan), measure, output)
    output.show(figures_of(found, plan))
    return int(failures > 0)


def _alone(what: Alone, names: Sequence[str], args: argparse.Namespace, output: Output) -> int:
    trials = args.trials or (what.quick_trials if args.quick else what.trials)
    rounds = _rounds(args)
    found: list[SearchResult] = []

    def measure(name: str) -> None:
        found.extend(
            run_isolated(name, args.threads, what.run, name, trials, rounds, args.threads, args.seed)
        )
        _keep(output, what.figures_of(found, trials), [side.search for side in found])

    failures = measure_each(names, what.searches * trials * OUR_TRIAL_S, measure, output)
    output.show(what.figures_of(found, trials))
    return int(failures > 0)


def _unseen(args: argparse.Namespace, output: Output) -> int:
    """Every layer on every device class that was asked for."""
    trials = args.trials or unseen.TRIALS
    layers = args.layers or (tuple(LAYERS)[:: len(LAYERS) // 3] if args.quick else tuple(LAYERS))
    classes = [one.name for one in args.device_classes or [CLASSES["native"]]]
    devices = {name: run_isolated(name, args.threads, calibrated, name, args.threads) for name in classes}
    found: list[unseen.LayerResult] = []

    def measure(both: str) -> None:
        device_class, layer = both.split(maxsplit=1)
        given = layer, device_class, devices[device_class], trials, _rounds(args), args.seed
        found.append(run_isolated(layer, args.threads, unseen.run, *given))
        curves = [search for one in found for search in one.searches]
        _keep(output, unseen.figures_of(found, trials), curves)

    expected = trials * (THEIR_TRIAL_S + OUR_TRIAL_S) + FINALS_S / 4
    failures = measure_each(
        [f"{name} {layer}" for name in classes for layer in layers], expected, measure, output
    )
    output.show(unseen.figures_of(found, trials))
    return int(failures > 0)


def _keep(output: Output, found: Sequence[Figure], curves: Sequence[Search]) -> None:
    """Anew after every operator."""
    output.write(found)
    SEARCHES.write(curves, output.file)


def expected_s(plan: Plan) -> float:
    """Seconds of one operator, before any was measured."""
    own = 2 * plan.trials + 3 * plan.trials / 4
    return plan.trials * THEIR_TRIAL_S + own * OUR_TRIAL_S + FINALS_S


def _rounds(args: argparse.Namespace) -> int:
    return int(args.rounds or (5 if args.quick else 10))


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        trials=args.trials or (QUICK_TRIALS if args.quick else TRIALS),
        threads=args.threads,
        rounds=_rounds(args),
        seed=args.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = engines_parser("benchmarks.operators", __doc__, QUICK)
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--ablation",
        action="store_const",
        const=ABLATION,
        dest="alone",
        help="compare our search with itself, without a part at a time",
    )
    alone.add_argument(
        "--settled",
        action="store_const",
        const=SETTLED,
        dest="alone",
        help="compare our search with itself, gone on with for a thousand trials",
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
        "--device-class",
        action="append",
        type=device_class,
        metavar="CLASS",
        dest="device_classes",
        help=f"of --unseen: {', '.join(CLASSES)} [native, all that the machine has]",
    )
    trials = f"of every search [{TRIALS}, quick {QUICK_TRIALS}; settled {SETTLED.trials}, quick 256]"
    parser.add_argument("--trials", type=positive, help=trials)
    return parser


if __name__ == "__main__":
    sys.exit(main())
