"""Compare the allocator with other ways to share trials, replayed on recorded searches of whole networks.

    python -m benchmarks.allocation docs/benchmarks/recording.recordings.jsonl --json FILE

`benchmarks.recording` makes the recordings. A task's latency after a number of trials is the best of its
recorded trials up to then. A network's latency is the sum over its subgraphs. A task whose recording is used
up gets no more trials. A seed chooses the order of a task's trials within every two picks, and the
allocator's random picks. Nothing is measured.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from benchmarks.arguments import command_parser, positive
from benchmarks.results.figures import Figure, FiguresError, at_least, figure
from benchmarks.results.output import Output
from benchmarks.results.recordings import RecordedTask, Recording, read_recordings
from scheduler.settings import SchedulerSettings
from search.allocate import ALPHA, WINDOW_PICKS, TaskProgress, next_tasks
from worker.settings import usable_cores

BATCH: int = SchedulerSettings.model_fields["batch_size"].default
PER_PICK: int = SchedulerSettings.model_fields["trials_per_pick"].default
EPSILON: float = SchedulerSettings.model_fields["epsilon"].default
SEEDS = 10
# The latency to reach: the one that equal shares reach with this part of the recorded trials.
PARTS = (0.25, 0.5)
ALL = "median of all networks"
ALLOCATOR, EQUAL = "the allocator", "equal shares"
WITHOUT_RANDOM_PICKS = "the allocator without random picks"
WITHOUT_SIMILARITY = "the allocator without similarity"
METASCHEDULE, ROUND_ROBIN = "MetaSchedule's formula", "round-robin"
AIM = at_least(1.5)

# Returns (task index, number of trials) for the next trials.
Allocate = Callable[[Sequence[TaskProgress], np.random.Generator], Sequence[tuple[int, int]]]


def _allocated(tasks: Sequence[TaskProgress], rng: np.random.Generator) -> Sequence[tuple[int, int]]:
    return next_tasks(tasks, BATCH, PER_PICK, rng, EPSILON)


def _without_random_picks(
    tasks: Sequence[TaskProgress], rng: np.random.Generator
) -> Sequence[tuple[int, int]]:
    return next_tasks(tasks, BATCH, PER_PICK, rng, epsilon=0.0)


def _without_similarity(tasks: Sequence[TaskProgress], rng: np.random.Generator) -> Sequence[tuple[int, int]]:
    """Allocate as usual, but no two tasks have the same tag."""
    return _allocated([replace(task, tag=str(number)) for number, task in enumerate(tasks)], rng)


def _equal(tasks: Sequence[TaskProgress], rng: np.random.Generator) -> Sequence[tuple[int, int]]:
    """Return the tasks with the fewest trials."""
    left = sorted((task.issued, index) for index, task in enumerate(tasks) if not task.exhausted)
    return [(index, PER_PICK) for _, index in left[: BATCH // PER_PICK]]


def _round_robin(tasks: Sequence[TaskProgress], rng: np.random.Generator) -> Sequence[tuple[int, int]]:
    """Return the next task in turn, which gets a whole round."""
    left = [(math.ceil(task.issued / BATCH), index) for index, task in enumerate(tasks) if not task.exhausted]
    return [(min(left)[1], BATCH)] if left else []


def _metaschedule(tasks: Sequence[TaskProgress], rng: np.random.Generator) -> Sequence[tuple[int, int]]:
    """Return the tasks with the largest gain, from slope and best / trials. As in MetaSchedule, tasks aren't
    compared with similar ones, and a task may get a whole round."""
    issued = [task.issued for task in tasks]
    picks: list[tuple[int, int]] = []
    while open_tasks := [i for i, task in enumerate(tasks) if not task.exhausted]:
        if len(picks) == BATCH // PER_PICK:
            break
        untried = [i for i in open_tasks if issued[i] == 0]
        chosen = untried[0] if untried else max(open_tasks, key=lambda i: _paper_gain(tasks[i], issued[i]))
        issued[chosen] += PER_PICK
        picks.append((chosen, PER_PICK))
    return picks


def _paper_gain(task: TaskProgress, issued: int) -> float:
    if math.isinf(task.best_s):
        return math.inf if issued < BATCH else 0.0
    slope = task.slope(WINDOW_PICKS * PER_PICK)
    return task.weight * (ALPHA * slope + (1 - ALPHA) * task.best_s / issued)


ALLOCATORS: Mapping[str, Allocate] = {
    ALLOCATOR: _allocated,
    WITHOUT_RANDOM_PICKS: _without_random_picks,
    WITHOUT_SIMILARITY: _without_similarity,
    METASCHEDULE: _metaschedule,
    ROUND_ROBIN: _round_robin,
    EQUAL: _equal,
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    output = Output("benchmarks.allocation", argv, args.json, usable_cores())
    try:
        recordings = [recording for file in args.recordings for recording in read_recordings(file)]
    except FiguresError as error:
        output.fail(error)
        return 1
    output.finish(figures_of(recordings, args.seeds))
    return 0


def figures_of(recordings: Sequence[Recording], seeds: int) -> list[Figure]:
    """Return the trials of equal shares relative to each allocator, for each network and for all networks."""
    found: list[Figure] = []
    medians: dict[tuple[str, float], list[float]] = {}
    for recording in recordings:
        drawn = [redrawn(recording, seed) for seed in range(seeds)]
        curves = {
            name: [replay(one, allocate, seed) for seed, one in enumerate(drawn)]
            for name, allocate in ALLOCATORS.items()
        }
        for part in PARTS:
            for name in ALLOCATORS:
                if name == EQUAL:
                    continue
                pairs = zip(curves[EQUAL], curves[name], strict=True)
                ratios = [fewer_trials(equal, other, part) for equal, other in pairs]
                medians.setdefault((name, part), []).append(statistics.median(ratios))
                found.append(_figure(recording.network, name, part, ratios, f"{seeds} seeds"))
    for (name, part), ratios in medians.items():
        found.append(_figure(ALL, name, part, ratios, ", ".join(one.network for one in recordings)))
    return found


def _figure(of: str, name: str, part: float, ratios: Sequence[float], note: str) -> Figure:
    low, median, high = np.percentile(ratios, (10, 50, 90))
    is_aimed = of == ALL and name == ALLOCATOR and part == PARTS[-1]
    aim = AIM if is_aimed else None
    return figure(
        f"trials with {EQUAL}",
        float(median),
        "x",
        peer=name,
        subject=of,
        condition=f"to reach the latency after {part:.0%} of all trials",
        aim=aim,
        spread=(float(low), float(high)),
        note=note,
    )


def redrawn(recording: Recording, seed: int) -> Recording:
    """Return the recording with each task's trials in another order within every two picks."""
    rng = np.random.default_rng(seed)
    tasks = []
    for task in recording.tasks:
        blocks = [task.seconds[at : at + 2 * PER_PICK] for at in range(0, len(task.seconds), 2 * PER_PICK)]
        order = [block[at] for block in blocks for at in rng.permutation(len(block))]
        tasks.append(replace(task, seconds=tuple(order)))
    return replace(recording, tasks=tuple(tasks))


def replay(recording: Recording, allocate: Allocate, seed: int) -> list[tuple[int, float]]:
    """Return (number of trials, network's seconds) after each batch, until all trials are used."""
    rng = np.random.default_rng(seed)
    covered = [task for task in recording.tasks if task.covered and task.seconds]
    fixed_s = latency_s([task for task in recording.tasks if not task.covered and task.seconds])
    histories = [
        tuple(accumulate((math.inf if secs is None else secs for secs in task.seconds), min))
        for task in covered
    ]
    given = [0] * len(covered)
    curve: list[tuple[int, float]] = []
    while True:
        picks = allocate(_progress(covered, histories, given), rng)
        if not picks:
            return curve
        for index, count in picks:
            given[index] = min(given[index] + count, len(histories[index]))
        best = [
            history[count - 1] if count else math.inf for history, count in zip(histories, given, strict=True)
        ]
        settled = [replace(task, seconds=(secs,)) for task, secs in zip(covered, best, strict=True)]
        curve.append((sum(given), fixed_s + latency_s(settled)))


def _progress(
    tasks: Sequence[RecordedTask], histories: Sequence[tuple[float, ...]], given: Sequence[int]
) -> list[TaskProgress]:
    found = [
        TaskProgress(task.weight, task.flops, history[:count], count, count == len(history), task.tag)
        for task, history, count in zip(tasks, histories, given, strict=True)
    ]
    return [
        replace(
            one,
            best_alternative_s=min(
                (
                    other.best_s
                    for at, other in enumerate(found)
                    if at != number and tasks[at].base_workload == task.base_workload
                ),
                default=math.inf,
            ),
        )
        for number, (one, task) in enumerate(zip(found, tasks, strict=True))
    ]


def latency_s(tasks: Sequence[RecordedTask]) -> float:
    """Return the sum over base workloads of the fastest task; inf while one has no working program."""
    fastest: dict[str, float] = {}
    for task in tasks:
        best = min((secs for secs in task.seconds if secs is not None), default=math.inf)
        base = task.base_workload
        fastest[base] = min(fastest.get(base, math.inf), best * task.weight)
    return sum(fastest.values())


def fewer_trials(
    equal: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]], part: float
) -> float:
    """Return how many times the trials of `other` the curve `equal` needs for the same latency.

    The latency is the one that `equal` has reached after `part` of its trials.
    """
    allowed = part * equal[-1][0]
    reached_s = min(seconds for trials, seconds in equal if trials <= allowed)
    theirs, ours = (next(trials for trials, secs in curve if secs <= reached_s) for curve in (equal, other))
    return theirs / ours


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmarks.allocation", __doc__)
    parser.add_argument(
        "recordings",
        nargs="+",
        type=Path,
        metavar="RECORDINGS",
        help="kept beside the figures of benchmarks.recording",
    )
    parser.add_argument("--seeds", type=positive, default=SEEDS, help=f"how many are drawn [{SEEDS}]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
