"""The paper's task scheduler (section 6): allocate trials by gradient descent on end-to-end latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALPHA = 0.2
# The expected speed of a task relative to the fastest similar task; the paper uses 0.5.
BETA = 1.0
# The number of latest picks over which the slope of a task's latency is taken.
WINDOW_PICKS = 3
# After this many trials, a task that lags behind similar tasks is judged alone, and a task without a working
# program comes last.
PATIENCE = 32
# A task has stalled if its latency fell by less than STALLED_GAIN over its latest STALLED_TRIALS trials.
STALLED_GAIN, STALLED_TRIALS = 0.01, 64
# The most trials of a task's first pick, because a few trials show what it may gain.
FIRST_PICK = 2
# The largest fraction of the trials that one task gets while others are open.
MAX_SHARE = 0.25


@dataclass(frozen=True)
class TaskProgress:
    """A task's state for the allocator. `weight` is the objective's gain for each second that the task saves;
    in a single network, it is the number of the task's occurrences. `history` is the best latency in seconds
    after each finished trial, inf until one works. `issued` counts finished and unfinished trials. Tasks of
    one `tag` are expected to reach similar speeds. `best_alternative_s` is the best latency of a task that
    can replace this one.
    """

    weight: float
    flops: float
    history: tuple[float, ...]
    issued: int
    exhausted: bool
    tag: str
    best_alternative_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf or self.issued < len(self.history):
            raise ValueError("a task's weight is not negative, and it has no more results than trials")

    @property
    def best_s(self) -> float:
        return self.history[-1] if self.history else math.inf

    @property
    def has_stalled(self) -> bool:
        """Whether the latest trials gained almost nothing, so that early stopping (f4 of the paper) ends the
        task.
        """
        before = self.history[-STALLED_TRIALS - 1 :]
        return len(before) > STALLED_TRIALS and before[-1] >= before[0] * (1 - STALLED_GAIN)

    def slope(self, trials: int) -> float:
        """Return the seconds gained per trial over the latest `trials`, counted from the first trial that
        worked.
        """
        recent = self.history[-trials - 1 :]
        worked = [seconds for seconds in recent if math.isfinite(seconds)]
        return (worked[0] - worked[-1]) / (len(worked) - 1) if len(worked) > 1 else 0.0


def next_tasks(
    tasks: Sequence[TaskProgress],
    trials: int,
    trials_per_pick: int,
    rng: np.random.Generator,
    epsilon: float,
) -> list[tuple[int, int]]:
    """Return picks of (task index, number of trials) until `trials` are allocated.

    A pick has `trials_per_pick` trials, a task's first pick at most FIRST_PICK, and the last pick the
    remainder. So no task loses its first trials to another task's later ones. Tasks without trials come
    first, ordered by their work. Then come tasks with the largest expected gain per trial, or with
    probability `epsilon` any task. One task gets at most MAX_SHARE of the trials while others are open,
    because their results aren't known yet. The result is empty if every task is exhausted.
    """
    given = [0] * len(tasks)
    picks: list[tuple[int, int]] = []
    left = [i for i, task in enumerate(tasks) if not task.exhausted]
    open_tasks = [i for i in left if not _cannot_improve(tasks, i, trials_per_pick)] or left
    most = max(trials_per_pick, MAX_SHARE * trials)
    # A pick changes the priority of the picked task alone.
    priority = {i: _priority(tasks, i, tasks[i].issued, trials_per_pick) for i in open_tasks}
    while open_tasks and sum(given) < trials:
        below_share = [i for i in open_tasks if given[i] + trials_per_pick <= most] or open_tasks
        chosen = max(below_share, key=priority.__getitem__)
        if tasks[chosen].issued + given[chosen] and rng.random() < epsilon:
            chosen = int(rng.choice(below_share))
        issued = tasks[chosen].issued + given[chosen]
        count = min(trials_per_pick if issued else min(FIRST_PICK, trials_per_pick), trials - sum(given))
        given[chosen] += count
        priority[chosen] = _priority(tasks, chosen, issued + count, trials_per_pick)
        picks.append((chosen, count))
    return picks


def _cannot_improve(tasks: Sequence[TaskProgress], index: int, trials_per_pick: int) -> bool:
    """Return whether more trials of a task can't improve the objective.

    The objective ignores it, or it isn't expected to become faster than its best alternative.
    """
    task = tasks[index]
    if task.issued == 0 or task.weight == 0:
        return task.issued > 0
    return (
        task.best_s > task.best_alternative_s
        and gain_per_trial(tasks, index, task.issued, trials_per_pick) == 0.0
    )


def _priority(
    tasks: Sequence[TaskProgress], index: int, issued: int, trials_per_pick: int
) -> tuple[bool, float]:
    """Return whether a task is untried, and its expected gain per trial."""
    task = tasks[index]
    if issued == 0:
        return True, task.flops * task.weight
    if math.isinf(task.best_s):
        # No trial has worked yet. The expected gain falls with every trial, at last below the gains of all
        # other tasks.
        gave_up = len(task.history) >= PATIENCE
        return False, -float(issued) if gave_up else task.flops * task.weight / issued * 1e-9
    return False, gain_per_trial(tasks, index, issued, trials_per_pick)


def gain_per_trial(tasks: Sequence[TaskProgress], index: int, issued: int, trials_per_pick: int) -> float:
    """Return the seconds of end-to-end latency that the next trial of a task is expected to save.

    This is the paper's |df/dt| for f1 = sum of weight * latency. It weights the slope over the latest picks
    by alpha, and an optimistic guess by 1 - alpha. The guess is the larger of best / trials and best - beta *
    C_i / max V_k. V_k are the speeds of similar tasks. A task that lags behind them for long is judged alone.
    A task that is slower than its best alternative saves only what it gains beyond that.
    """
    task = tasks[index]
    guess = task.best_s / issued
    similar = [other for other in tasks if other.tag == task.tag and other is not task]
    fastest = max((other.flops / other.best_s for other in similar), default=0.0)
    if issued < PATIENCE and fastest > 0:
        guess = max(guess, task.best_s - BETA * task.flops / fastest)
    behind = max(task.best_s - task.best_alternative_s, 0.0) if math.isfinite(task.best_s) else 0.0
    slope = task.slope(WINDOW_PICKS * trials_per_pick)
    return task.weight * max(ALPHA * slope + (1 - ALPHA) * guess - behind, 0.0)
