"""The task scheduler of the paper (section 6): gradient descent on end-to-end latency shares out trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.2
BETA = 2.0
WINDOW = 3
# The number of trials after which a task that lags behind similar ones is judged on its own, and a task of
# which nothing has worked comes after all others.
PATIENCE = 32
# The largest share of the slots that one task gets while others are open.
MAX_SHARE = 0.25
# A task is stalled after STALL_TRIALS without progress (five rounds of a quarter of a batch), and after
# STALL_FACTOR times the trials that led to its best. Gains below PROGRESS, relative to the latency, are
# noise.
STALL_TRIALS = 40
STALL_FACTOR = 2
PROGRESS = 0.01
# The share of the formula's expected gain that a trial of a stalled task is taken to bring.
STALLED_WORTH = 0.1


@dataclass(frozen=True)
class TaskProgress:
    """A task as the allocator sees it.

    `history` is the best latency in seconds after each finished trial, inf until one works. `issued` counts
    finished and unfinished trials. Tasks of one `tag` are expected to reach similar speeds. `rival_s` is the
    best latency of another task that can take this one's place.
    """

    weight: int
    flops: float
    history: tuple[float, ...]
    issued: int
    exhausted: bool
    tag: str
    rival_s: float = math.inf

    def __post_init__(self) -> None:
        if self.weight < 1 or self.issued < len(self.history):
            raise ValueError("a task occurs at least once and has no more results than trials")

    @property
    def best_s(self) -> float:
        return self.history[-1] if self.history else math.inf

    @property
    def is_stalled(self) -> bool:
        """Whether the task made no progress in its latest trials."""
        if math.isinf(self.best_s):
            return False
        reached = 1 + next(at for at, s in enumerate(self.history) if s <= (1 + PROGRESS) * self.best_s)
        return len(self.history) - reached >= max(STALL_TRIALS, STALL_FACTOR * reached)


def next_tasks(tasks: Sequence[TaskProgress], trials: int, trials_per_pick: int) -> list[int]:
    """Return the index of a task for every pick of `trials_per_pick` trials, until `trials` are shared out.

    Tasks without trials come first, those of the most work first; then those of the largest expected gain per
    trial. One task gets at most MAX_SHARE of the trials while others are open, because their results aren't
    known yet. Stalled tasks get none, unless all are stalled or the others are expected to gain next to
    nothing. The result is empty if every task is exhausted.
    """
    issued = [task.issued for task in tasks]
    picks: list[int] = []
    open_tasks = _open_tasks(tasks)
    while open_tasks and len(picks) * trials_per_pick < trials:
        share = max(1, math.floor(MAX_SHARE * trials / trials_per_pick))
        below_share = [i for i in open_tasks if picks.count(i) < share]
        chosen = max(below_share or open_tasks, key=lambda i: _priority(tasks, i, issued[i]))
        issued[chosen] += trials_per_pick
        picks.append(chosen)
    return picks


def _open_tasks(tasks: Sequence[TaskProgress]) -> list[int]:
    """Return the indices of the tasks that may get trials."""
    left = [i for i, task in enumerate(tasks) if not task.exhausted]
    left = [i for i in left if not _is_beaten(tasks, i)] or left
    improving = [i for i in left if not tasks[i].is_stalled]
    if not improving:
        return left
    is_untried, most = max(_priority(tasks, i, tasks[i].issued) for i in improving)
    # A stalled task that makes up most of the network's time goes on if the others gain only trifles.
    enough = math.inf if is_untried else most / STALLED_WORTH
    return [i for i in left if i in improving or gain_per_trial(tasks, i, tasks[i].issued) > enough]


def _is_beaten(tasks: Sequence[TaskProgress], index: int) -> bool:
    """Whether a task can't be expected to become faster than its rival."""
    task = tasks[index]
    return task.best_s > task.rival_s and task.issued > 0 and gain_per_trial(tasks, index, task.issued) == 0.0


def _priority(tasks: Sequence[TaskProgress], index: int, issued: int) -> tuple[bool, float]:
    """Return whether a task is untried, and its expected gain per trial."""
    task = tasks[index]
    if issued == 0:
        return True, task.flops * task.weight
    if math.isinf(task.best_s):
        # Nothing worked yet: the expected gain falls with every trial, in the end below that of all others.
        gave_up = len(task.history) >= PATIENCE
        return False, -float(issued) if gave_up else task.flops * task.weight / issued * 1e-9
    return False, gain_per_trial(tasks, index, issued)


def gain_per_trial(tasks: Sequence[TaskProgress], index: int, issued: int) -> float:
    """Return the seconds of end-to-end latency that the next trial of a task is expected to save.

    This is |df/dt| of the paper for f1 = sum of weight * latency: the recent slope and an optimistic guess,
    mixed by alpha. The guess is the larger of best / trials and best - beta * C_i / max V_k, which compares
    with the speeds V_k of similar tasks; a task that stays behind them for long is judged on its own. A task
    that is slower than its rival saves only what it gains beyond catching up.
    """
    task = tasks[index]
    before = task.history[max(0, len(task.history) - 1 - WINDOW)]
    slope = (before - task.best_s) / WINDOW if math.isfinite(before) else 0.0
    guess = task.best_s / issued
    similar = [other for other in tasks if other.tag == task.tag and other is not task]
    fastest = max((other.flops / other.best_s for other in similar), default=0.0)
    if issued < PATIENCE and fastest > 0:
        guess = max(guess, task.best_s - BETA * task.flops / fastest)
    behind = max(task.best_s - task.rival_s, 0.0) if math.isfinite(task.best_s) else 0.0
    return task.weight * max(ALPHA * slope + (1 - ALPHA) * guess - behind, 0.0)
