from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search import allocate
from search.allocate import PATIENCE, STALLED_TRIALS, TaskProgress, gain_per_trial


def next_tasks(
    tasks: Sequence[TaskProgress], trials: int, trials_per_pick: int, epsilon: float = 0.0
) -> list[int]:
    picks = allocate.next_tasks(tasks, trials, trials_per_pick, np.random.default_rng(0), epsilon)
    return [index for index, _ in picks]


def _task(
    *history: float,
    weight: float = 1,
    flops: float = 1e6,
    issued: int | None = None,
    exhausted: bool = False,
    tag: str = "",
) -> TaskProgress:
    count = len(history) if issued is None else issued
    return TaskProgress(weight, flops, tuple(history), count, exhausted, tag or f"only{flops}")


def test_every_task_is_tried_before_any_is_tried_again() -> None:
    tasks = [_task(1e-3, 9e-4), _task(), _task(1.0, 0.5), _task()]
    assert sorted(next_tasks(tasks, trials=2, trials_per_pick=1)) == [1, 3]


def test_the_heaviest_task_is_tried_first() -> None:
    tasks = [_task(flops=1e6), _task(flops=1e8), _task(flops=1e6, weight=50)]
    assert next_tasks(tasks, trials=6, trials_per_pick=8) == [1, 2, 0]


def test_the_first_pick_of_a_task_is_small() -> None:
    tasks = [_task(), _task(1e-3, flops=2e6)]
    picks = allocate.next_tasks(tasks, 6, 4, np.random.default_rng(0), 0.0)
    assert picks == [(0, 2), (1, 4)]


def test_the_last_pick_gets_the_remaining_trials() -> None:
    tasks = [_task(1e-3, 1e-3)]
    picks = allocate.next_tasks(tasks, 10, 4, np.random.default_rng(0), 0.0)
    assert picks == [(0, 4), (0, 4), (0, 2)]
    assert next_tasks(tasks, trials=0, trials_per_pick=4) == []


def test_a_task_that_occurs_more_often_matters_more() -> None:
    history = (2e-3, 1e-3, 1e-3, 1e-3, 1e-3)
    tasks = [_task(*history), _task(*history, weight=9)]
    assert next_tasks(tasks, trials=1, trials_per_pick=1) == [1]


def test_an_improving_task_is_preferred_to_a_stalled_task() -> None:
    stalled = _task(1e-3, 1e-3, 1e-3, 1e-3, 1e-3, flops=1e6)
    improving = _task(8e-3, 4e-3, 2e-3, 1.2e-3, 1e-3, flops=2e6)
    assert next_tasks([stalled, improving], trials=1, trials_per_pick=1) == [1]


def test_exhausted_tasks_are_skipped() -> None:
    tasks = [_task(1.0, exhausted=True), _task(1e-6), _task(exhausted=True)]
    assert set(next_tasks(tasks, trials=8, trials_per_pick=1)) == {1}
    assert next_tasks([_task(exhausted=True)], trials=8, trials_per_pick=1) == []
    assert next_tasks([], trials=8, trials_per_pick=1) == []


def test_picks_made_already_count_as_trials() -> None:
    """Two equal tasks share a batch evenly."""
    history = (1e-3, 1e-3, 1e-3, 1e-3)
    tasks = [_task(*history, flops=1e6), _task(*history, flops=2e6)]
    picks = next_tasks(tasks, trials=64, trials_per_pick=8)
    assert picks.count(0) == picks.count(1) == 4


def test_a_task_where_nothing_works_does_not_starve_the_others() -> None:
    broken = _task(*[math.inf] * 64, flops=1e9, weight=10)
    working = _task(1e-3, 9e-4, 8e-4, 7e-4, 6e-4, flops=1e6)
    picks = next_tasks([broken, working], trials=16, trials_per_pick=1)
    assert picks[0] == 1
    assert picks.count(1) > picks.count(0)
    assert set(next_tasks([broken], trials=16, trials_per_pick=1)) == {0}


def test_a_task_gets_at_most_a_quarter_of_a_round() -> None:
    promising = _task(8e-3, 4e-3, 2e-3, 1.2e-3, 1e-3, weight=100)
    others = [_task(1e-6, 1e-6, flops=float(flops)) for flops in range(1, 5)]
    picks = next_tasks([promising, *others], trials=64, trials_per_pick=4)
    assert picks.count(0) == 4
    assert picks[:4] == [0] * 4


def test_a_task_gets_more_than_a_quarter_if_no_other_is_open() -> None:
    tasks = [_task(1e-3), _task(1e-3, flops=2e6), _task(exhausted=True)]
    assert len(next_tasks(tasks, trials=64, trials_per_pick=4)) == 16


def test_a_heavy_task_that_failed_a_few_times_is_tried_again() -> None:
    unlucky = _task(math.inf, math.inf, flops=1e9, weight=10)
    working = _task(1e-3, 9e-4, 8e-4, 7e-4, 6e-4, flops=1e6)
    assert next_tasks([unlucky, working], trials=1, trials_per_pick=1) == [0]


def test_the_papers_formula_on_a_worked_example() -> None:
    """alpha 0.2, beta 1, window 3: weight 5, 8 ms three trials ago, 4 ms now, 10 trials issued.

    slope = (8 - 4) / 3 ms; optimistic: 4 ms / 10; a similar task runs 5e8 operations a second, so 2e6
    operations might take 4 ms, which saves nothing.
    gain = 5 * (0.2 * 4/3 + 0.8 * 0.4) ms
    """
    task = _task(9e-3, 8e-3, 6e-3, 5e-3, 4e-3, weight=5, flops=2e6, issued=10, tag="conv")
    similar = _task(2e-3, flops=1e6, tag="conv")
    assert gain_per_trial([task, similar], 0, 10, 1) == pytest.approx(5 * (0.2 * 4e-3 / 3 + 0.8 * 0.4e-3))


def test_an_improvement_anywhere_in_a_pick_counts() -> None:
    """The first of the latest pick's four trials halved the latency. The previous pick gained nothing."""
    found = gain_per_trial([_task(*[8e-3] * 4, *[4e-3] * 4)], 0, 8, 4)
    assert found == pytest.approx(0.2 * 4e-3 / 7 + 0.8 * 4e-3 / 8)
    long_ago = gain_per_trial([_task(*[8e-3] * 4, *[4e-3] * 13)], 0, 17, 4)
    assert long_ago == pytest.approx(0.8 * 4e-3 / 17)


def test_the_slope_begins_with_the_first_success() -> None:
    task = _task(math.inf, math.inf, 3e-3, 2e-3, 1e-3)
    assert gain_per_trial([task], 0, 5, 4) == pytest.approx(0.2 * 1e-3 + 0.8 * 1e-3 / 5)


def test_a_similar_task_that_is_much_faster_promises_more() -> None:
    """At 8e9 operations a second, 2e6 operations may take 0.25 ms instead of 4, a gain of 3.75 ms."""
    task = _task(4e-3, 4e-3, 4e-3, 4e-3, weight=5, flops=2e6, issued=10, tag="conv")
    fast = _task(1e-3, flops=8e6, tag="conv")
    other = _task(1e-3, flops=8e6, tag="pool")
    assert gain_per_trial([task, fast], 0, 10, 1) == pytest.approx(5 * 0.8 * 3.75e-3)
    assert gain_per_trial([task, other], 0, 10, 1) == pytest.approx(5 * 0.8 * 0.4e-3)


def test_a_lagging_task_is_judged_by_its_own_history() -> None:
    task = _task(*[4e-3] * PATIENCE, flops=2e6, tag="conv")
    fast = _task(1e-3, flops=8e6, tag="conv")
    assert gain_per_trial([task, fast], 0, PATIENCE, 1) == pytest.approx(0.8 * 4e-3 / PATIENCE)


def test_the_first_success_is_no_slope() -> None:
    task = _task(math.inf, math.inf, math.inf, 2e-3)
    assert gain_per_trial([task], 0, 4, 1) == pytest.approx(0.8 * 2e-3 / 4)


@pytest.mark.parametrize(("weight", "issued"), [(-1, 1), (math.inf, 1), (math.nan, 1), (1, 0)])
def test_impossible_progress_is_refused(weight: float, issued: int) -> None:
    with pytest.raises(ValueError, match="no more results than trials"):
        _task(1e-3, weight=weight, issued=issued)


def test_a_task_that_the_objective_ignores_comes_last() -> None:
    history = (8e-3, 4e-3, 2e-3)
    tasks = [_task(*history, weight=0), _task(*history, flops=2e6)]
    assert next_tasks(tasks, trials=1, trials_per_pick=1) == [1]
    assert next_tasks([tasks[0], replace(tasks[1], exhausted=True)], trials=1, trials_per_pick=1) == [0]


def test_some_picks_go_to_any_task() -> None:
    promising, hopeless = _task(8e-3, 4e-3, weight=100), _task(1e-6, 1e-6, flops=2e6)
    picked = Counter(
        index
        for _ in range(10)
        for index in next_tasks([promising, hopeless, _task(exhausted=True)], 40, 1, epsilon=0.5)
    )
    assert picked.keys() == {0, 1}
    everywhere = Counter(next_tasks([promising, hopeless], 1000, 1, epsilon=1.0))
    assert abs(everywhere[0] - everywhere[1]) < 150


def test_a_pick_changes_the_priority_of_its_task_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet's batch has hundreds of picks, so not all priorities are computed for each."""
    computed: list[int] = []
    priority = allocate._priority

    def counting(tasks: Sequence[TaskProgress], index: int, *more: int) -> tuple[bool, float]:
        computed.append(index)
        return priority(tasks, index, *more)

    monkeypatch.setattr(allocate, "_priority", counting)
    picks = next_tasks([_task(8e-3, 4e-3, 2e-3, flops=float(flops)) for flops in range(1, 11)], 100, 1)
    assert computed == [*range(10), *picks]


def test_an_untried_task_comes_before_any_exploration() -> None:
    tasks = [_task(8e-3, 4e-3, weight=100), *(_task(flops=float(flops)) for flops in range(1, 9))]
    assert sorted(next_tasks(tasks, 8, 1, epsilon=1.0)) == list(range(1, 9))


def test_a_task_has_stalled_when_many_trials_gained_next_to_nothing() -> None:
    assert not _task(*[1e-3] * STALLED_TRIALS).has_stalled
    assert _task(*[1e-3] * (STALLED_TRIALS + 1)).has_stalled
    assert _task(1e-3, *[0.995e-3] * STALLED_TRIALS).has_stalled
    assert not _task(1e-3, *[0.98e-3] * STALLED_TRIALS).has_stalled
    assert _task(*[math.inf] * (STALLED_TRIALS + 1)).has_stalled
    assert not _task(math.inf, *[1e-3] * STALLED_TRIALS).has_stalled


_histories = st.lists(st.one_of(st.just(math.inf), st.floats(1e-7, 1.0)), max_size=8).map(
    lambda found: tuple(min(found[: i + 1]) for i in range(len(found)))
)
_tasks = st.builds(
    lambda weight, flops, history, more, exhausted, tag: TaskProgress(
        weight, flops, history, len(history) + more, exhausted, tag
    ),
    st.integers(1, 20),
    st.floats(0.0, 1e10),
    _histories,
    st.integers(0, 40),
    st.booleans(),
    st.sampled_from(["conv", "pool"]),
)


@given(st.lists(_tasks, max_size=6), st.integers(0, 64), st.integers(1, 16))
def test_open_tasks_get_all_trials(tasks: list[TaskProgress], trials: int, trials_per_pick: int) -> None:
    picks = next_tasks(tasks, trials, trials_per_pick)
    assert not any(tasks[i].exhausted for i in picks)
    is_open = any(not task.exhausted for task in tasks)
    first = sum(tasks[i].issued == 0 for i in set(picks))
    given = len(picks) * trials_per_pick - first * (trials_per_pick - min(2, trials_per_pick))
    assert trials <= given < trials + trials_per_pick if is_open else not picks


def test_only_variants_close_to_the_fastest_get_trials() -> None:
    history = (4e-3, 2e-3, 2e-3, 2e-3, 2e-3)
    other = _task(*history, flops=2e6)
    far, close = (
        replace(_task(*history), best_alternative_s=best_alternative_s)
        for best_alternative_s in (1e-3, 1.9e-3)
    )
    assert gain_per_trial([far], 0, 5, 1) == 0.0
    assert 0.0 < gain_per_trial([close], 0, 5, 1) < gain_per_trial([_task(*history)], 0, 5, 1)
    assert next_tasks([far, other], trials=4, trials_per_pick=1) == [1, 1, 1, 1]
    ahead = replace(_task(*history), best_alternative_s=3e-3)
    assert gain_per_trial([ahead], 0, 5, 1) == gain_per_trial([_task(*history)], 0, 5, 1)


def test_the_fastest_of_several_variants_gets_the_trials() -> None:
    """Three variants of one base workload: each trial of the fastest gains, and the others can't catch up."""
    finals = {"first": 1e-3, "second": 1.5e-3, "third": 4e-3, "elsewhere": 1e-3}
    names = list(finals)
    histories: dict[str, tuple[float, ...]] = dict.fromkeys(names, ())
    rng = np.random.default_rng(0)
    for _ in range(20):
        best = {name: min(histories[name], default=math.inf) for name in names}
        tasks = [
            replace(
                _task(*histories[name], tag=name),
                best_alternative_s=min(best[other] for other in names[:3] if other != name)
                if name != "elsewhere"
                else math.inf,
            )
            for name in names
        ]
        for index, count in allocate.next_tasks(tasks, 8, 4, rng, 0.0):
            name = names[index]
            for _ in range(count):
                histories[name] += (finals[name] * (1 + 1 / (len(histories[name]) + 1)),)
    trials = {name: len(histories[name]) for name in names}
    assert trials["third"] <= trials["second"] < trials["first"]
    assert trials["third"] <= 4
    assert trials["second"] <= sum(trials.values()) / 8
