"""A failing model loses only its harmful schedules, which few assemblies find."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.measurement import Outcome
from records.fleet.module_runs import StoredModuleRun
from records.schedules.schedules import Record
from scheduler.steps.selection import (
    MAX_ASSEMBLIES,
    Assembly,
    AssemblyHistory,
    ScheduleId,
    next_selection,
    schedule_id,
)

WRONG = "wrong_result: output 0: its values are off by 3, 0.1 is allowed"
Fails = Callable[[frozenset[ScheduleId]], bool]


def record(workload: str, latency_s: float) -> Record:
    return Record(
        workload_hash=workload,
        device_class="class",
        trace=f"[[{latency_s}],[]]",
        program=None,
        latency_s=latency_s,
        run_s=(latency_s,),
        outcome=Outcome.OK,
        target="llvm",
        source="trial",
        created_at=0.0,
    )


def records(workloads: int, each: int = 3) -> list[Record]:
    """Of each workload fastest first."""
    return [record(f"w{number:02}", 1.0 + at) for number in range(workloads) for at in range(each)]


def bests(listed: Collection[Record], count: int = 1) -> list[ScheduleId]:
    return [schedule_id(one) for one in listed if one.latency_s is not None and one.latency_s <= count]


def searched(
    listed: list[Record], fails: Fails, refused: dict[ScheduleId, str] | None = None
) -> list[Assembly]:
    assemblies: list[Assembly] = []
    while (
        selection := next_selection(listed, AssemblyHistory(tuple(assemblies), refused or {}), {})
    ) is not None:
        assert len(assemblies) < MAX_ASSEMBLIES
        assert selection.schedules not in [assembly.schedules for assembly in assemblies], (
            "nothing is tried twice"
        )
        assemblies.append(Assembly(selection.schedules, WRONG if fails(selection.schedules) else ""))
    return assemblies


def best_of(assemblies: list[Assembly]) -> frozenset[ScheduleId]:
    return max((each.schedules for each in assemblies if not each.failure), key=len, default=frozenset())


def test_a_model_that_works_is_assembled_once() -> None:
    [only] = searched(records(29), lambda _: False)
    assert only.schedules == set(bests(records(29)))


@given(st.integers(1, 32), st.data())
def test_one_harmful_schedule_of_up_to_32_is_found_exactly(workloads: int, data: st.DataObject) -> None:
    listed = records(workloads)
    culprit = data.draw(st.sampled_from(bests(listed)))
    assemblies = searched(listed, lambda schedules: culprit in schedules)
    lost = set(bests(listed)) - best_of(assemblies)
    assert lost == {culprit}


@given(st.integers(33, 200), st.data())
def test_a_harmful_schedule_among_more_than_32_is_dropped_with_a_few_others(
    workloads: int, data: st.DataObject
) -> None:
    listed = records(workloads)
    culprit = data.draw(st.sampled_from(bests(listed)))
    assemblies = searched(listed, lambda schedules: culprit in schedules)
    lost = set(bests(listed)) - best_of(assemblies)
    assert culprit in lost
    assert len(lost) <= workloads / 32 + 1


def test_a_harmful_schedule_is_replaced_by_the_next_best_then_the_fallback() -> None:
    listed = records(4)
    first, second, third = (schedule_id(one) for one in listed[:3])
    assemblies = searched(listed, lambda schedules: first in schedules)
    assert second in best_of(assemblies)
    assemblies = searched(listed, lambda schedules: first in schedules or second in schedules)
    assert not best_of(assemblies) & {first, second, third}
    assert len(best_of(assemblies)) == 3


def test_uncompilable_schedules_are_left_out_without_bisection() -> None:
    listed = records(29)
    refused = dict.fromkeys(bests(listed[:6], count=2), "LLVM ERROR: no such instruction")
    selection = next_selection(listed, AssemblyHistory((), refused), {})
    assert selection is not None
    assert len(selection.chosen) == 29
    assert [selection.chosen[name].latency_s for name in ("w00", "w01", "w02")] == [3.0, 3.0, 1.0]
    assert selection.reasons == dict.fromkeys(["w00", "w01"], "LLVM ERROR: no such instruction")


def test_a_rejected_schedule_explains_the_failure_of_its_assembly() -> None:
    listed = records(29)
    [culprit] = bests(listed[:1])
    failed = Assembly(frozenset(bests(listed)), "compiling the model crashed the compiler (SIGSEGV)")
    selection = next_selection(
        listed, AssemblyHistory((failed,), {culprit: "it crashed the compiler (SIGSEGV)"}), {}
    )
    assert selection is not None
    assert selection.schedules >= set(bests(listed)) - {culprit}


def test_two_harmful_schedules_are_never_published() -> None:
    listed = records(16, each=1)
    found = []
    for other in bests(listed)[1:]:
        culprits = {bests(listed)[0], other}
        assemblies = searched(listed, lambda schedules, culprits=culprits: bool(culprits & schedules))  # type: ignore[misc]
        assert not best_of(assemblies) & culprits
        found.append(bool(best_of(assemblies)))
    assert sum(found) > len(found) / 2


def test_a_model_that_always_fails_is_given_up() -> None:
    assert len(searched(records(29), lambda _: True)) == MAX_ASSEMBLIES
    assert len(searched([], lambda _: True)) == 1


def test_one_of_two_schedules_that_fail_together_is_left_out() -> None:
    listed = records(4)
    assemblies = searched(listed, lambda schedules: len(schedules) > 3)
    assert len(best_of(assemblies)) == 3
    assert len(assemblies) <= MAX_ASSEMBLIES


def test_a_lost_device_is_not_blamed_on_schedules() -> None:
    listed = records(4)
    run = StoredModuleRun(1, "job", "tuned", "sha", "done", 2, "lease", Outcome.DEVICE_LOST, (), "")
    assembly = Assembly(frozenset(bests(listed)), "device_lost", run)
    assert next_selection(listed, AssemblyHistory((assembly,), {}, is_inconclusive=True), {}) is None
    assert next_selection(listed, AssemblyHistory((replace(assembly, run=None),), {}), {}) is not None


@pytest.mark.parametrize("workloads", [2, 5, 29])
def test_every_excluded_schedule_has_a_reason(workloads: int) -> None:
    listed = records(workloads)
    [culprit] = bests(listed[:1])
    assemblies: list[Assembly] = []
    while (selection := next_selection(listed, AssemblyHistory(tuple(assemblies), {}), {})) is not None:
        names = {workload for workload, _ in bests(listed)}
        slower = {name for name, one in selection.chosen.items() if one.latency_s != 1.0}
        assert selection.reasons.keys() == (names - selection.chosen.keys()) | slower
        assert all(WRONG in reason for reason in selection.reasons.values())
        assemblies.append(Assembly(selection.schedules, WRONG if culprit in selection.schedules else ""))


VARIANTS = {"w00-variant": "w00", "w01-variant": "w01"}


def test_the_fastest_of_a_subgraph_and_its_variants_is_selected() -> None:
    listed = [*records(3), record("w00-variant", 0.5), record("w01-variant", 1.5)]
    selection = next_selection(listed, AssemblyHistory(), VARIANTS)
    assert selection is not None
    assert {place: one.workload_hash for place, one in selection.chosen.items()} == {
        "w00": "w00-variant",
        "w01": "w01",
        "w02": "w02",
    }
    assert selection.traces.keys() == {"w00-variant", "w01", "w02"}
    assert selection.reasons == {}


def test_a_variant_that_breaks_the_model_gives_way_to_the_subgraph_itself() -> None:
    variant = record("w00-variant", 0.5)
    listed = [*records(4), variant]
    assemblies: list[Assembly] = []
    while (selection := next_selection(listed, AssemblyHistory(tuple(assemblies)), VARIANTS)) is not None:
        failure = WRONG if schedule_id(variant) in selection.schedules else ""
        assemblies.append(Assembly(selection.schedules, failure))
    last = next(each for each in reversed(assemblies) if not each.failure)
    assert last.schedules == set(bests(records(4)))
    refused = next_selection(listed, AssemblyHistory((), {schedule_id(variant): "LLVM ERROR"}), VARIANTS)
    assert refused is not None
    assert refused.chosen["w00"].workload_hash == "w00"
    assert refused.reasons == {"w00": "LLVM ERROR"}
