"""Which task gets the next trials: gradient descent on end-to-end latency (paper section 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.2
BETA = 2.0
WINDOW = 3
# Trials after which a task that lags behind similar ones no longer counts as similar, and one where nothing
# has worked comes after all the others.
PATIENCE = 32
MAX_SHARE = 0.25
# A task is set aside after so many trials without progress (five rounds of a quarter of a batch), at least so
# many times as many as it took to its best. Less than that part of its latency is no progress, but noise.
STALL_TRIALS = 40
STALL_FACTOR = 2
PROGRESS = 0.01
# A trial of a stalled task is expected to gain so much of what the formula hopes for.
STALLED_WORTH = 0.1


@dataclass(frozen=True)
class TaskProgress:
    """A task as the allocator sees it.

    `history` is the best latency in seconds after each finished trial, inf until one works; `issued`
    counts all trials handed out; tasks with equal `tag` are similar enough to learn speed from. `rival_s` is
    the best latency of another task that can take this one's place; only what undercuts it is a gain.
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
        """Whether its last many trials were in vain."""
        if math.isinf(self.best_s):
            return False
        reached = 1 + next(at for at, s in enumerate(self.history) if s <= (1 + PROGRESS) * self.best_s)
        return len(self.history) - reached >= max(STALL_TRIALS, STALL_FACTOR * reached)


def next_tasks(tasks: Sequence[TaskProgress], trials: int, trials_per_pick: int) -> list[int]:
    """One index per pick of `trials_per_pick` trials, until `trials` are given out.

    Tasks without trials come first, heaviest first; then the largest expected gain per trial. Nobody knows
    yet what the trials will bring, so one task gets at most a quarter of them while others are open. Stalled
    tasks are set aside unless all are, or the others promise next to nothing. Empty when every task is
    exhausted.
    """
    issued = [task.issued for task in tasks]
    picks: list[int] = []
    open_tasks = _open(tasks)
    while open_tasks and len(picks) * trials_per_pick < trials:
        share = max(1, math.floor(MAX_SHARE * trials / trials_per_pick))
        below_share = [i for i in open_tasks if picks.count(i) < share]
        chosen = max(below_share or open_tasks, key=lambda i: _priority(tasks, i, issued[i]))
        issued[chosen] += trials_per_pick
        picks.append(chosen)
    return picks


def _open(tasks: Sequence[TaskProgress]) -> list[int]:
    """The indices of the tasks that may get trials."""
    left = [i for i, task in enumerate(tasks) if not task.exhausted]
    # A task that can't be expected to undercut its rival gets what no other task has a use for.
    left = [i for i in left if not math.isfinite(tasks[i].rival_s) or _may_gain(tasks, i)] or left
    moving = [i for i in left if not tasks[i].is_stalled]
    if not moving:
        return left
    is_untried, most = max(_priority(tasks, i, tasks[i].issued) for i in moving)
    # One that makes up most of the network's time must not starve because trifles still improve.
    hoped = math.inf if is_untried else most / STALLED_WORTH
    return [i for i in left if i in moving or gain_per_trial(tasks, i, tasks[i].issued) > hoped]


def _may_gain(tasks: Sequence[TaskProgress], index: int) -> bool:
    """Whether a task has no result yet or is expected to save time."""
    task = tasks[index]
    return math.isinf(task.best_s) or gain_per_trial(tasks, index, task.issued) > 0.0


def _priority(tasks: Sequence[TaskProgress], index: int, issued: int) -> tuple[bool, float]:
    task = tasks[index]
    if issued == 0:
        return True, task.flops * task.weight
    if math.isinf(task.best_s):
        # Nothing worked yet: the more has been tried in vain, the less is expected, in the end nothing.
        hopeless = len(task.history) >= PATIENCE
        return False, -float(issued) if hopeless else task.flops * task.weight / issued * 1e-9
    return False, gain_per_trial(tasks, index, issued)


def gain_per_trial(tasks: Sequence[TaskProgress], index: int, issued: int) -> float:
    """Seconds of end-to-end latency that the next trial of a task is expected to save.

    |df/dt| of the paper for f1 = sum of weight * latency: the slope so far and an optimistic guess, mixed
    by alpha. The guess is the larger of best / trials and what is missing to beta times less than the
    speed of similar tasks; a task that stays behind them for long is judged on its own. A task that is slower
    than its rival saves what it gains beyond catching up, if anything.
    """
    task = tasks[index]
    before = task.history[max(0, len(task.history) - 1 - WINDOW)]
    slope = (before - task.best_s) / WINDOW if math.isfinite(before) else 0.0
    hoped = task.best_s / issued
    if issued < PATIENCE:
        hoped = max(hoped, task.best_s - _reachable_s(tasks, index))
    behind = max(task.best_s - task.rival_s, 0.0)
    return task.weight * max(ALPHA * slope + (1 - ALPHA) * hoped - behind, 0.0)


def _reachable_s(tasks: Sequence[TaskProgress], index: int) -> float:
    """beta * C_i / max V_k over similar tasks k; inf when there is none to compare with."""
    task = tasks[index]
    speeds = [
        other.flops / other.best_s
        for other in tasks
        if other.tag == task.tag and other is not task and math.isfinite(other.best_s)
    ]
    fastest = max(speeds, default=0.0)
    return BETA * task.flops / fastest if fastest > 0 else math.inf
