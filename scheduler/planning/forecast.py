"""Forecast a job's next minutes from its finished trials: how much faster its networks become, and when it
ends. Latency falls roughly with the logarithm of the time spent, so its fall in the second half of the search
predicts the gain of the next minute. The speed of the search is measured in its second half, because the
first trials are of the largest subgraphs and of the slowest programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from core.job import Budget
from core.model_latency import base_workload
from records.jobs.tasks import Task
from records.jobs.trials import MeasuredTrial, Pace

# The time after which the next minute's gain is predicted.
MIN_FORECAST_AGE_S = 60.0
MINUTE_S = 60.0
# The number of trials after which the search's speed is known.
MIN_FORECAST_TRIALS = 8


class Point(NamedTuple):
    """The latency reached at a time in epoch seconds."""

    at: float
    latency_s: float


def curve(networks: Sequence[tuple[float, Sequence[Task]]], measured: Sequence[MeasuredTrial]) -> list[Point]:
    """Return the weighted sum of the networks' latencies over time, starting when all latencies are known.
    `networks` are pairs of weight and tasks. `measured` are their trials in the order in which they ended.
    Trials that were slower than an earlier one of their task may be left out.
    """
    tasks = {task.id: task for _, listed in networks for task in listed}
    worked = {tasks[trial.task_id].workload_hash for trial in measured if trial.latency_s is not None}
    # Measurements by other jobs count from the beginning.
    best = {
        task.workload_hash: task.best_s or math.inf
        for task in tasks.values()
        if task.workload_hash not in worked
    }
    points: list[Point] = []
    for trial in measured:
        workload = tasks[trial.task_id].workload_hash
        if trial.latency_s is not None and trial.latency_s < best.get(workload, math.inf):
            best[workload] = trial.latency_s
            latency_s = sum(weight * _latency_s(listed, best) for weight, listed in networks)
            if math.isfinite(latency_s):
                points.append(Point(trial.finished_at, latency_s))
    return points


def _latency_s(tasks: Sequence[Task], best: Mapping[str, float]) -> float:
    """Return a network's latency, inf until each covered base workload has been measured."""
    latencies: dict[str, float] = {}
    for task in tasks:
        seconds = task.weight * best.get(task.workload_hash, math.inf)
        base = base_workload(task)
        latencies[base] = min(seconds, latencies.get(base, math.inf))
    covered = {base_workload(task) for task in tasks if task.covered}
    return sum(seconds for base, seconds in latencies.items() if base in covered or math.isfinite(seconds))


def gain_of_next_minute(points: Sequence[Point], began_at: float, now: float) -> float | None:
    """Return the expected gain of the next minute as a fraction of the latency; None while it is too early.

    `began_at` is when the search began.
    """
    fall = _fall(points, began_at, now)
    return None if fall is None else fall * math.log1p(MINUTE_S / (now - began_at)) / points[-1].latency_s


def _fall(points: Sequence[Point], began_at: float, now: float) -> float | None:
    """Return the fall of the latency in seconds per e-fold growth of the search's duration; None while it is
    too early.
    """
    half = began_at + (now - began_at) / 2
    before = [point for point in points if point.at <= half]
    if now - began_at < MIN_FORECAST_AGE_S or not before:
        return None
    return (before[-1].latency_s - points[-1].latency_s) / math.log(2)


def seconds_left(
    budget: Budget,
    trials_left: int,
    pace: Pace | None,
    points: Sequence[Point],
    *,
    began_at: float,
    now: float,
) -> float | None:
    """Return the seconds until the search reaches one of the budget's goals; None while that is unknown.

    The search began at `began_at`; `pace` is that of its finished trials.
    """
    limits = []
    # Trials are reported in batches, so trials of the same moment don't count.
    if pace is not None and pace.finished >= MIN_FORECAST_TRIALS and pace.later:
        limits.append(trials_left * (now - pace.half_at) / pace.later)
    if budget.minutes is not None:
        limits.append(began_at + 60 * budget.minutes - now)
    fall = _fall(points, began_at, now)
    if fall:
        latency_s = points[-1].latency_s
        if budget.min_gain is not None:
            limits.append(began_at + MINUTE_S / math.expm1(budget.min_gain * latency_s / fall) - now)
        if budget.latency_s is not None:
            # An exponent this large means never.
            longer = min((latency_s - budget.latency_s) / fall, 50.0)
            limits.append((now - began_at) * math.expm1(longer))
    return max(min(limits), 0.0) if limits else None
