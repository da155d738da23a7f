"""Which schedules are left out of a model that fails: found by few attempts, and no others lost."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.measurement import Outcome
from records.fleet.module_runs import StoredModuleRun
from records.schedules.schedules import Record
from scheduler.steps.fallbacks import MAX_ATTEMPTS, Attempt, History, Plan, Schedule, next_plan, schedule_of

WRONG = "wrong_result: output 0: its values are off by 3, 0.1 is allowed"
Fails = Callable[[frozenset[Schedule]], bool]


def record(workload: str, latency_s: float) -> Record:
    return Record(
        workload_hash=workload,
        device_class="class",
        trace=f"[[{latency_s}],[]]",
        program=None,
        latency_s=latency_s,
        run_secs=(latency_s,),
        outcome=Outcome.OK,
        target="llvm",
        source="trial",
        created_at=0.0,
    )


def records(workloads: int, each: int = 3) -> list[Record]:
    """Of each workload fastest first."""
    return [record(f"w{number:02}", 1.0 + at) for number in range(workloads) for at in range(each)]


def bests(known: Collection[Record], count: int = 1) -> list[Schedule]:
    return [schedule_of(one) for one in known if one.latency_s is not None and one.latency_s <= count]


def searched(known: list[Record], fails: Fails, refused: dict[Schedule, str] | None = None) -> list[Attempt]:
    attempts: list[Attempt] = []
    plans: list[Plan] = []
    while (plan := next_plan(known, History(tuple(attempts), refused or {}))) is not None:
        assert len(attempts) < MAX_ATTEMPTS
        assert plan.schedules not in [attempt.schedules for attempt in attempts], "nothing is tried twice"
        plans.append(plan)
        attempts.append(Attempt(plan.schedules, WRONG if fails(plan.schedules) else ""))
    return attempts


def best_of(attempts: list[Attempt]) -> frozenset[Schedule]:
    return max((each.schedules for each in attempts if not each.failure), key=len, default=frozenset())


def test_a_model_that_works_is_put_together_once() -> None:
    [only] = searched(records(29), lambda _: False)
    assert only.schedules == set(bests(records(29)))


@given(st.integers(1, 32), st.data())
def test_one_culprit_of_up_to_32_is_found_and_nothing_else_is_lost(
    workloads: int, data: st.DataObject
) -> None:
    known = records(workloads)
    culprit = data.draw(st.sampled_from(bests(known)))
    attempts = searched(known, lambda schedules: culprit in schedules)
    lost = set(bests(known)) - best_of(attempts)
    assert lost == {culprit}


@given(st.integers(33, 200), st.data())
def test_of_more_a_few_innocent_ones_are_lost_with_it(workloads: int, data: st.DataObject) -> None:
    known = records(workloads)
    culprit = data.draw(st.sampled_from(bests(known)))
    attempts = searched(known, lambda schedules: culprit in schedules)
    lost = set(bests(known)) - best_of(attempts)
    assert culprit in lost
    assert len(lost) <= workloads / 32 + 1


def test_the_next_best_takes_its_place_and_then_the_fallback() -> None:
    known = records(4)
    first, second, third = (schedule_of(one) for one in known[:3])
    attempts = searched(known, lambda schedules: first in schedules)
    assert second in best_of(attempts)
    attempts = searched(known, lambda schedules: first in schedules or second in schedules)
    assert not best_of(attempts) & {first, second, third}
    assert len(best_of(attempts)) == 3


def test_what_cannot_be_compiled_is_left_out_without_a_search() -> None:
    known = records(29)
    refused = dict.fromkeys(bests(known[:6], count=2), "LLVM ERROR: no such instruction")
    plan = next_plan(known, History((), refused))
    assert plan is not None
    assert len(plan.chosen) == 29
    assert [plan.chosen[name].latency_s for name in ("w00", "w01", "w02")] == [3.0, 3.0, 1.0]
    assert plan.reasons == dict.fromkeys(["w00", "w01"], "LLVM ERROR: no such instruction")


def test_a_failure_that_a_refused_schedule_explains_puts_no_other_under_suspicion() -> None:
    known = records(29)
    [culprit] = bests(known[:1])
    failed = Attempt(frozenset(bests(known)), "compiling the model crashed the compiler (SIGSEGV)")
    plan = next_plan(known, History((failed,), {culprit: "it crashed the compiler (SIGSEGV)"}))
    assert plan is not None
    assert plan.schedules >= set(bests(known)) - {culprit}


def test_of_two_culprits_none_is_published_and_mostly_something_is() -> None:
    known = records(16, each=1)
    found = []
    for other in bests(known)[1:]:
        culprits = {bests(known)[0], other}
        attempts = searched(known, lambda schedules, culprits=culprits: bool(culprits & schedules))  # type: ignore[misc]
        assert not best_of(attempts) & culprits
        found.append(bool(best_of(attempts)))
    assert sum(found) > len(found) / 2


def test_a_model_that_always_fails_is_given_up() -> None:
    assert len(searched(records(29), lambda _: True)) == MAX_ATTEMPTS
    assert len(searched([], lambda _: True)) == 1


def test_what_fails_together_and_works_apart_is_left_as_it_is() -> None:
    known = records(4)
    attempts = searched(known, lambda schedules: len(schedules) > 3)
    assert len(best_of(attempts)) == 3
    assert len(attempts) <= MAX_ATTEMPTS


def test_a_lost_device_says_nothing_about_schedules() -> None:
    known = records(4)
    run = StoredModuleRun(1, "job", "tuned", "sha", "done", 2, "lease", Outcome.DEVICE_LOST, (), "")
    attempt = Attempt(frozenset(bests(known)), "device_lost", run)
    assert next_plan(known, History((attempt,), {}, stopped=True)) is None
    assert next_plan(known, History((replace(attempt, run=None),), {})) is not None


@pytest.mark.parametrize("workloads", [2, 5, 29])
def test_a_reason_is_given_for_all_that_is_left_out(workloads: int) -> None:
    known = records(workloads)
    [culprit] = bests(known[:1])
    attempts: list[Attempt] = []
    while (plan := next_plan(known, History(tuple(attempts), {}))) is not None:
        names = {workload for workload, _ in bests(known)}
        slower = {name for name, one in plan.chosen.items() if one.latency_s != 1.0}
        assert plan.reasons.keys() == (names - plan.chosen.keys()) | slower
        assert all(WRONG in reason for reason in plan.reasons.values())
        attempts.append(Attempt(plan.schedules, WRONG if culprit in plan.schedules else ""))
