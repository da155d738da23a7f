"""Measure how well the learned cost model predicts the programs of finished jobs.

    python -m benchmarks.learning --database DATABASE --database DATABASE --json FILE
    python -m benchmarks.learning --recorded PROGRAMS --json FILE

As in section 7.5 of the paper, a random fifth of the programs is held out, and the model is trained on the
others. The paper used 25,000 programs of one network. Other splits are harder. They hold out whole workloads,
whole networks, or the next trials of a job. A ceiling is what a perfect model would get: the same program
takes a little more or less time when it is measured again.
Recall has no aim: 30 of a few hundred programs are found more easily than 30 of the paper's 5,000.

PROGRAMS is a file that `benchmarks.fit --measure` wrote.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import command_parser
from benchmarks.fit.databases import read_databases
from benchmarks.fit.fitting import described
from benchmarks.fit.programs import Group, ProgramsError, read
from benchmarks.results.figures import Figure, at_least, figure, number
from benchmarks.results.output import Output
from search.cost import accuracy
from search.cost.accuracy import Predictions
from search.cost.cost_parameters import FITTED
from search.cost.estimate import Estimate
from search.cost.model import CostModel, Examples
from search.programs.nest import Floats
from search.sketches.factors import Ints
from worker.settings import usable_cores

SEEDS, QUICK_SEEDS = 10, 2
HELD_OUT = 5  # a fifth
# Trials between two trainings of a job's model.
BATCH = 32
# What the paper reports.
PAPER = {"r2": 0.958, "pairwise": 0.851}
WORDS = {
    "r2": "R2 of throughput",
    "pairwise": "pairs in the right order",
    "recall": f"recall of the {accuracy.TOP} fastest",
}

Rows = NDArray[np.bool_]
# The programs that a model is trained on, and those that it predicts.
Fold = tuple[Rows, Rows]


@dataclass(frozen=True)
class Measured:
    """All programs of several groups. Every array is [programs]; `order` grows in the order of the trials.

    `noise` is the standard deviation of the logarithm of one measurement.
    """

    features: NDArray[np.float32]
    estimated_s: Floats
    seconds: Floats
    task: Ints
    network: Ints
    order: Ints
    noise: float

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Measured:
        found = [described(group, FITTED) for group in groups]
        sizes = [len(group.seconds) for group in groups]
        names = list(dict.fromkeys(group.operator for group in groups))
        repeated = np.concatenate([group.repeat_errors for group in groups])
        return cls(
            np.concatenate([features for features, _ in found]),
            np.concatenate([estimated.seconds for _, estimated in found]),
            np.concatenate([group.seconds for group in groups]),
            np.repeat(np.arange(len(groups)), sizes),
            np.repeat([names.index(group.operator) for group in groups], sizes),
            np.concatenate([group.order for group in groups]),
            float(np.sqrt(np.mean(repeated**2) / 2)) if len(repeated) else 0.0,
        )

    @property
    def best_s(self) -> Floats:
        """[programs]: the seconds of the fastest program of each program's task."""
        best = np.full(self.task.max() + 1, np.inf)
        np.minimum.at(best, self.task, self.seconds)
        return best[self.task]

    def learned(self, folds: Sequence[Fold]) -> Floats:
        """Return predicted seconds [programs], each by the model of the fold that holds the program out; NaN
        for others."""
        told = np.full(len(self.seconds), np.nan)
        for trained, held in folds:
            examples = Examples(
                self.features[trained], self.estimated_s[trained], self.seconds[trained], self.task[trained]
            )
            told[held] = CostModel.train(examples).predict(
                self.features[held], Estimate(self.estimated_s[held])
            )
        return told

    def judged(self, predicted_s: Floats, held: Rows) -> dict[str, float]:
        """Return each metric of the predictions of `held` programs that is defined."""
        told = Predictions(predicted_s, self.seconds, self.best_s, self.task)
        metrics = asdict(accuracy.evaluate(told.take(held)))
        return {name: metrics[name] for name in WORDS if metrics[name] is not None}


def random_programs(measured: Measured, rng: np.random.Generator) -> list[Fold]:
    """Hold out a random fifth of the programs."""
    held = rng.permutation(len(measured.seconds)) % HELD_OUT == 0
    return [(~held, held)]


def workloads(measured: Measured, rng: np.random.Generator) -> list[Fold]:
    """Hold out each fifth of the workloads in turn."""
    count = measured.task.max() + 1
    part = (rng.permutation(count) % HELD_OUT)[measured.task]
    return [(part != one, part == one) for one in range(min(count, HELD_OUT))]


def networks(measured: Measured, _rng: np.random.Generator) -> list[Fold]:
    """Hold out each network in turn."""
    numbers = np.unique(measured.network)
    return [(measured.network != one, measured.network == one) for one in numbers if len(numbers) > 1]


def later_trials(measured: Measured, _rng: np.random.Generator) -> list[Fold]:
    """Hold out each batch of trials after the first, and train on all trials before it."""
    rank = np.argsort(np.argsort(measured.order, kind="stable"), kind="stable")
    starts = range(BATCH, len(rank), BATCH)
    return [(rank < start, (rank >= start) & (rank < start + BATCH)) for start in starts]


Split = Callable[[Measured, np.random.Generator], list[Fold]]
SPLITS: Mapping[str, Split] = {
    "a random fifth held out": random_programs,
    "workloads held out": workloads,
    "networks or operators held out": networks,
    f"the next {BATCH} trials": later_trials,
}
# These take nothing from the generator.
FIXED = (networks, later_trials)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if programs can't be read."""
    parser = command_parser("benchmarks.learning", __doc__, f"{QUICK_SEEDS} seeds instead of {SEEDS}")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--database", action="append", type=Path, dest="databases", help="tunefarm.db of a data folder"
    )
    source.add_argument("--recorded", type=Path, metavar="PROGRAMS", help="a file of benchmarks.fit")
    args = parser.parse_args(argv)
    output = Output("benchmarks.learning", argv, args.json, usable_cores())
    try:
        groups = read_databases(args.databases) if args.databases else read(args.recorded)
    except ProgramsError as error:
        output.fail(error)
        return 1
    output.finish(list(figures_of(groups, QUICK_SEEDS if args.quick else SEEDS)))
    return 0


def figures_of(groups: Sequence[Group], seeds: int) -> Iterator[Figure]:
    """Yield the figures of each device class."""
    for device_class in dict.fromkeys(group.device_class for group in groups):
        measured = Measured.of([group for group in groups if group.device_class == device_class])
        for condition, split in SPLITS.items():
            yield from _of_split(measured, device_class, condition, split, seeds)


def _of_split(
    measured: Measured, device_class: str, condition: str, split: Split, seeds: int
) -> Iterator[Figure]:
    found: list[tuple[dict[str, float], ...]] = []
    held = np.zeros(len(measured.seconds), dtype=bool)
    for seed in range(1 if split in FIXED else seeds):
        rng = np.random.default_rng(seed)
        folds = split(measured, rng)
        if not folds:
            return
        held = np.logical_or.reduce([one for _, one in folds])
        repeated = measured.seconds * np.exp(rng.normal(0.0, measured.noise, len(held)))
        told = (measured.learned(folds), measured.estimated_s, repeated)
        found.append(tuple(measured.judged(each, held) for each in told))
    for metric, words in WORDS.items():
        values = [[each[metric] for each in row if metric in each] for row in found]
        if not all(len(row) == 3 for row in values):
            continue
        learned, estimated, ceiling = (statistics.fmean(column) for column in zip(*values, strict=True))
        low, high = np.quantile([row[0] for row in values], [0.1, 0.9])
        yield figure(
            words,
            learned,
            "",
            subject=device_class,
            condition=condition,
            count=int(held.sum()),
            aim=at_least(PAPER[metric]) if metric in PAPER else None,
            spread=(float(low), float(high)) if len(values) > 1 else None,
            note=f"the estimate alone: {number(estimated)}; a perfect model, if measurements differ by "
            f"{measured.noise:.1%}: {number(ceiling)}",
        )


if __name__ == "__main__":
    sys.exit(main())
