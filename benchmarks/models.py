"""Compare our cost model and TVM's on programs that they were not trained on.

    python -m benchmarks.models --quick --json FILE
    python -m benchmarks.models --recorded PROGRAMS --json FILE

Random programs of every operator are timed once, or PROGRAMS are read, a file that `benchmarks.fit --measure`
wrote. Our cost model and TVM's XGBModel over its PerStoreFeature are trained on the same half of them, all
operators together. They predict the other half. Then the halves change places. The analytic estimate alone is
the third.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import tvm
from numpy.typing import NDArray
from rich.progress import track

from benchmarks.arguments import positive, suite_parser
from benchmarks.engines.metaschedule_search import Predictor
from benchmarks.fit.programs import ProgramsError, read
from benchmarks.results.figures import Figure, at_least, figure, number
from benchmarks.results.output import Output
from benchmarks.suite import OPERATORS
from benchmarks.timing.measurer import Candidate, ProgramMeasurer, seconds
from compiler.lowering.trace import lower
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.workload import to_json
from core.device import Device
from search.cost import accuracy
from search.cost.accuracy import ModelMetrics, Predictions
from search.cost.model import CostModel
from search.policy import TuneContext, draw, train
from search.programs.nest import Floats
from search.programs.program import Program, gather
from search.rules.space import generate

QUICK = ("GMM", "C2D", "DEP")
QUICK_PROGRAMS, PROGRAMS = 128, 256
OURS, THEIRS, ESTIMATE = "ours", "TVM's", "the estimate"
WORDS: Mapping[str, str] = {
    "r2": "R2 of throughput",
    "pairwise": "pairs in the right order",
    "recall": f"recall of the {accuracy.TOP} fastest",
}


@dataclass(frozen=True)
class MeasuredPrograms:
    """Programs of one operator, their traces, and their seconds [programs], inf for a failure."""

    module: tvm.IRModule
    task: TuneContext
    programs: tuple[Program, ...]
    traces: tuple[str, ...]
    run_s: Floats

    @property
    def best_s(self) -> float:
        return float(self.run_s.min())


# Trains on the programs that aren't held out by the second argument, and predicts the seconds of all programs
# [programs], by operator.
Fit = Callable[[Mapping[str, MeasuredPrograms], Mapping[str, NDArray[np.bool_]]], Mapping[str, Floats]]


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    output = Output("benchmarks.models", argv, args.json, args.threads)
    os.environ["TVM_NUM_THREADS"] = str(args.threads)
    device = detect_device(args.threads)
    names = args.operators or (QUICK if args.quick else list(OPERATORS))
    count = args.programs or (QUICK_PROGRAMS if args.quick else PROGRAMS)
    if args.recorded:
        try:
            known = recorded(args.recorded)
        except ProgramsError as error:
            output.fail(error)
            return 1
    else:
        known = {
            name: measured(OPERATORS[name].module(OPERATORS[name].benchmark), device, count, args.seed)
            for name in track(names, description="timing", disable=not sys.stderr.isatty())
        }
    output.finish(
        figures_of(known, {who: predict_held_out(known, fit, args.seed) for who, fit in FITS.items()})
    )
    return 0


def measured(module: tvm.IRModule, device: Device, count: int, seed: int) -> MeasuredPrograms:
    """Draw up to `count` random programs as the search does. Return them with their measured seconds."""
    dag = read_dag(module)
    task = TuneContext(dag, generate(dag, device), device)
    programs = [proposal.program for proposal in draw(task, count, np.random.default_rng(seed))]
    traces = [lower(module, program, device) for program in programs]
    text = to_json(module)
    timed = ProgramMeasurer(module, device).measure([Candidate(text, trace) for trace in traces])
    secs = np.array([seconds(one) for one in timed])
    return MeasuredPrograms(module, task, tuple(programs), tuple(traces), secs)


def recorded(path: Path) -> dict[str, MeasuredPrograms]:
    """Read measured programs, by device class and layer. If one was measured repeatedly, its last seconds
    count. Raises ProgramsError."""
    known = {}
    for group in read(path):
        module = OPERATORS[group.operator].module(group.shape, group.batch)
        dag = read_dag(module)
        task = TuneContext(dag, generate(dag, group.device), group.device)
        programs = [each.program(row) for each in group.populations for row in range(len(each))]
        secs = dict(zip(programs, group.seconds, strict=True))
        traces = tuple(lower(module, program, group.device) for program in secs)
        name = f"{group.device_class}, {group.name}"
        known[name] = MeasuredPrograms(module, task, tuple(secs), traces, np.array([*secs.values()]))
    return known


def predict_held_out(known: Mapping[str, MeasuredPrograms], fit: Fit, seed: int) -> dict[str, Floats]:
    """Return predicted seconds [programs] by operator, each from a model that wasn't trained on the
    program."""
    rng = np.random.default_rng(seed)
    first = {name: rng.permutation(len(records.run_s)) % 2 == 0 for name, records in known.items()}
    second = {name: ~half for name, half in first.items()}
    folds = [fit(known, half) for half in (first, second)]
    return {name: np.where(half, folds[0][name], folds[1][name]) for name, half in first.items()}


def _ours(known: Mapping[str, MeasuredPrograms], held: Mapping[str, NDArray[np.bool_]]) -> dict[str, Floats]:
    samples = [
        (records.task, program, float(secs))
        for name, records in known.items()
        for program, secs, is_held in zip(records.programs, records.run_s, held[name], strict=True)
        if not is_held
    ]
    model = train(samples)
    return {name: _predict(records, model) for name, records in known.items()}


def _estimate(
    known: Mapping[str, MeasuredPrograms], _held: Mapping[str, NDArray[np.bool_]]
) -> dict[str, Floats]:
    return {name: _predict(records, CostModel()) for name, records in known.items()}


def _theirs(
    known: Mapping[str, MeasuredPrograms], held: Mapping[str, NDArray[np.bool_]]
) -> dict[str, Floats]:
    predictor = Predictor()
    for name, records in known.items():
        seen = np.flatnonzero(~held[name])
        traces = [records.traces[row] for row in seen]
        predictor.learn(records.module, records.task.device, traces, records.run_s[seen].tolist())
    return {
        name: records.best_s / predictor.score(records.module, records.task.device, records.traces)
        for name, records in known.items()
    }


FITS: Mapping[str, Fit] = {OURS: _ours, THEIRS: _theirs, ESTIMATE: _estimate}


def _predict(records: MeasuredPrograms, model: CostModel) -> Floats:
    """Predict seconds [programs], all programs of a sketch at once."""
    told = np.zeros(len(records.programs))
    keys = np.array([program.sketch.key for program in records.programs])
    for key in dict.fromkeys(keys):
        rows = np.flatnonzero(keys == key)
        told[rows] = records.task.predict(gather([records.programs[row] for row in rows]), model)
    return told


def figures_of(
    known: Mapping[str, MeasuredPrograms], told: Mapping[str, Mapping[str, Floats]]
) -> list[Figure]:
    """Return the figures of all operators together first, then the figures of each operator."""
    return [
        *_compared("all operators", _predictions(known, told)),
        *(
            each
            for name in known
            for each in [
                *_compared(name, _predictions({name: known[name]}, told)),
                _rank_correlation(name, known[name], told[ESTIMATE][name]),
            ]
        ),
    ]


def _predictions(
    known: Mapping[str, MeasuredPrograms], told: Mapping[str, Mapping[str, Floats]]
) -> dict[str, Predictions]:
    """Return each model's predictions of these operators."""
    sizes = [len(records.run_s) for records in known.values()]
    measured_s = np.concatenate([records.run_s for records in known.values()])
    best_s = np.repeat([records.best_s for records in known.values()], sizes)
    task = np.repeat(np.arange(len(sizes)), sizes)
    return {
        who: Predictions(np.concatenate([found[name] for name in known]), measured_s, best_s, task)
        for who, found in told.items()
    }


def _compared(what: str, predictions: Mapping[str, Predictions]) -> list[Figure]:
    """Compare our model with TVM's in every metric that both have."""
    judged = {who: accuracy.evaluate(each) for who, each in predictions.items()}
    return [
        each
        for metric in fields(ModelMetrics)
        if metric.name in WORDS
        for each in _metric(what, metric.name, judged)
    ]


def _metric(what: str, metric: str, judged: Mapping[str, ModelMetrics]) -> list[Figure]:
    values: dict[str, float | None] = {who: getattr(found, metric) for who, found in judged.items()}
    ours, theirs, estimate = (values[who] for who in (OURS, THEIRS, ESTIMATE))
    if ours is None or theirs is None or estimate is None:
        return []
    note = f"TVM's features and model: {number(theirs)}; the estimate alone: {number(estimate)}"
    found = figure(
        WORDS[metric],
        ours,
        "",
        subject=what,
        condition="of programs not trained on",
        aim=at_least(theirs),
        note=note,
    )
    return [found]


def _rank_correlation(name: str, records: MeasuredPrograms, estimated_s: Floats) -> Figure:
    """Return the figure of Spearman's correlation between estimated and measured seconds, without
    failures."""
    from scipy.stats import spearmanr

    ran = np.isfinite(records.run_s)
    rho = float(spearmanr(estimated_s[ran], records.run_s[ran]).statistic)
    count = int(ran.sum())
    return figure(
        f"rank correlation of the estimate with {count} measured latencies",
        rho,
        "",
        subject=name,
        count=count,
    )


def _parser() -> argparse.ArgumentParser:
    parser = suite_parser("benchmarks.models", __doc__, QUICK)
    parser.add_argument(
        "--programs", type=positive, help=f"of each operator [{PROGRAMS}, quick {QUICK_PROGRAMS}]"
    )
    parser.add_argument("--recorded", type=Path, metavar="PROGRAMS", help="read these, and time none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
