"""Compare the allocator with equal shares of trials, replayed on measured searches.

    python -m benchmarks.allocation operators.searches.jsonl --json FILE

`benchmarks.operators` leaves the searches beside its figures. Every searched operator is a task of
imagined networks, in which it occurs a random number of times; its latency after a number of trials is the
best that the search had found by then. Nothing is measured; a network's latency is the sum over its tasks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.arguments import command_parser, positive
from benchmarks.operators.run import OURS
from benchmarks.results.figures import Figure, FiguresError, figure
from benchmarks.results.output import Output
from benchmarks.results.searches import SEARCHES, Search
from benchmarks.suite import OPERATORS
from compiler.reading.subgraph import read_dag
from scheduler.settings import SchedulerSettings
from search.allocate import ALPHA, WINDOW_PICKS, TaskProgress, next_tasks
from worker.settings import usable_cores

BATCH: int = SchedulerSettings.model_fields["batch_size"].default
PER_PICK: int = SchedulerSettings.model_fields["trials_per_pick"].default
NETWORKS = 100
MOST_OFTEN = 8
# Trials for each task on average.
BUDGETS = (8, 16, 32, 64)
ALLOCATOR, EQUAL, METASCHEDULE = "the allocator", "equal shares", "MetaSchedule's formula"


# Returns the tasks that get the next trials, PER_PICK for each time that a task is listed.
Allocate = Callable[[Sequence[TaskProgress]], Sequence[int]]


def _allocated(tasks: Sequence[TaskProgress]) -> Sequence[int]:
    return next_tasks(tasks, BATCH, PER_PICK)


def _equal(tasks: Sequence[TaskProgress]) -> Sequence[int]:
    """Return the tasks with the fewest trials."""
    left = sorted((task.issued, index) for index, task in enumerate(tasks) if not task.exhausted)
    return [index for _, index in left[: BATCH // PER_PICK]]


def _metaschedule(tasks: Sequence[TaskProgress]) -> Sequence[int]:
    """Return the tasks of the largest gain by slope and best / trials. As in MetaSchedule, no task is
    compared with similar ones, and one may get a whole round."""
    issued = [task.issued for task in tasks]
    picks: list[int] = []
    while open_tasks := [i for i, task in enumerate(tasks) if not task.exhausted]:
        if len(picks) == BATCH // PER_PICK:
            break
        untried = [i for i in open_tasks if issued[i] == 0]
        chosen = untried[0] if untried else max(open_tasks, key=lambda i: _paper_gain(tasks[i], issued[i]))
        issued[chosen] += PER_PICK
        picks.append(chosen)
    return picks


def _paper_gain(task: TaskProgress, issued: int) -> float:
    slope = task.slope(WINDOW_PICKS * PER_PICK)
    return task.weight * (ALPHA * slope + (1 - ALPHA) * task.best_s / issued)


ALLOCATORS: Mapping[str, Allocate] = {
    ALLOCATOR: _allocated,
    METASCHEDULE: _metaschedule,
    EQUAL: _equal,
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    output = Output("benchmarks.allocation", argv, args.json, usable_cores())
    try:
        searches = SEARCHES.read_file(args.searches)
    except FiguresError as error:
        output.fail(error)
        return 1
    found = [search for search in searches if search.engine == OURS and search.points]
    if not found:
        output.fail(f"{args.searches} has no searches of ours")
        return 1
    output.finish(figures_of([task_of(search) for search in found], args.networks, args.seed))
    return 0


def task_of(search: Search) -> TaskProgress:
    """Return the task as the allocator would have seen it at the end of the search."""
    chosen = OPERATORS[search.operator]
    flops = read_dag(chosen.module(chosen.benchmark)).flops
    history = tuple(search.best_after(count) or np.inf for count in range(1, search.trials + 1))
    return TaskProgress(1, flops, history, search.trials, exhausted=False, tag=search.operator)


def figures_of(ends: Sequence[TaskProgress], networks: int, seed: int) -> list[Figure]:
    """Return the latency of each other way to share over the allocator's, at every budget, over random
    networks."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, MOST_OFTEN, size=(networks, len(ends)), endpoint=True)
    drawn = [
        [replace(end, weight=int(weight)) for end, weight in zip(ends, row, strict=True)] for row in weights
    ]
    reached = {
        name: np.array([replay(tasks, allocate) for tasks in drawn]) for name, allocate in ALLOCATORS.items()
    }
    return [
        _relative(name, budget, reached[name][:, at] / reached[ALLOCATOR][:, at], len(ends))
        for name in ALLOCATORS
        if name != ALLOCATOR
        for at, budget in enumerate(BUDGETS)
    ]


def replay(ends: Sequence[TaskProgress], allocate: Allocate) -> list[float]:
    """Return the network's seconds at every budget; results become known batch by batch."""
    given = [0] * len(ends)
    found = []
    for budget in BUDGETS:
        while sum(given) < budget * len(ends):
            picks = allocate([_after(end, count) for end, count in zip(ends, given, strict=True)])
            if not picks:
                break
            for index in picks:
                given[index] = min(given[index] + PER_PICK, len(ends[index].history))
        latencies = [_after(end, count).best_s * end.weight for end, count in zip(ends, given, strict=True)]
        found.append(sum(latencies))
    return found


def _after(end: TaskProgress, trials: int) -> TaskProgress:
    history = end.history[:trials]
    return replace(end, history=history, issued=trials, exhausted=trials == len(end.history))


def _relative(name: str, budget: int, ratios: NDArray[np.float64], tasks: int) -> Figure:
    low, median, high = np.percentile(ratios, (10, 50, 90))
    what = (
        f"{name}: latency of a network of {tasks} tasks after {budget} trials a task, relative to {ALLOCATOR}"
    )
    return figure(what, float(median), "x", peer=f"{len(ratios)} networks", spread=(float(low), float(high)))


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.allocation", __doc__)
    parser.add_argument(
        "searches", type=Path, metavar="SEARCHES", help="searches beside the figures of benchmarks.operators"
    )
    parser.add_argument("--networks", type=positive, default=NETWORKS, help=f"imagined networks [{NETWORKS}]")
    parser.add_argument("--seed", type=int, default=0, help="for how often operators occur [0]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
