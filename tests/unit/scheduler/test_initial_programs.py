"""The search of a new workload begins with the best programs of similar ones."""

from __future__ import annotations

from typing import Any

import pytest

from records.jobs import jobs
from scheduler.planning import batch, initial_programs
from scheduler.planning.initial_programs import find_initial_programs, nearest
from scheduler.planning.job_snapshot import read_snapshot
from search.programs.program import Program
from tests import workloads
from tests.unit.scheduler.farm import CONV, DEVICE, MATMUL, FakeCompiler, Farm, extracted, search_quickly

LARGER = extracted("larger", workloads.matmul(64, 32, 128), 1)


def begin(farm: Farm, compiler: FakeCompiler, *tasks: Any) -> None:
    """A finished job of the matmul and the convolution, and one of other tasks, imported."""
    farm.submit(trials=16)
    farm.plug_in()
    farm.finish()
    compiler.tasks = tasks
    farm.restart()
    farm.submit("next", trials=8)
    farm.context.wake("intake", "next")


def seeds_of(farm: Farm, *tasks: Any) -> dict[str, tuple[Program, ...]]:
    context = farm.context
    listed = farm.tasks("next")
    with farm.database.begin() as session:
        snapshot = read_snapshot(
            session, jobs.get(session, "next"), listed, context.record_cache, context.trial_cache
        )
    task_spaces = context.spaces.load([task.workload_hash for task in tasks], DEVICE)
    return find_initial_programs(farm.database, context.spaces, snapshot, task_spaces)


def test_a_new_workload_starts_from_the_best_programs_of_similar_workloads(
    farm: Farm, compiler: FakeCompiler
) -> None:
    begin(farm, compiler, LARGER)
    farm.drain()
    [found] = seeds_of(farm, LARGER).values()
    assert 0 < len(found) <= initial_programs.PROGRAMS_PER_WORKLOAD
    [space] = farm.context.spaces.load([LARGER.workload_hash], DEVICE).values()
    assert all(program.sketch in space.search_task.sketches for program in found)
    again = seeds_of(farm, LARGER)[LARGER.workload_hash]
    assert all(one is other for one, other in zip(again, found, strict=True)), "fitted once"


def test_seeds_are_handed_to_the_search(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(farm, compiler, LARGER)
    given: list[int] = []

    def noted(*args: Any, initial_programs: Any, **more: Any) -> Any:
        given.append(len(initial_programs))
        return search_quickly(*args, **more)

    monkeypatch.setattr(batch, "propose", noted)
    farm.drain()
    assert given
    assert all(given)


def test_a_workload_with_enough_records_gets_no_initial_programs(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(farm, compiler, LARGER, MATMUL)
    farm.drain()
    monkeypatch.setattr(initial_programs, "ENOUGH_RECORDS", 1)
    assert seeds_of(farm, LARGER, MATMUL).keys() == {LARGER.workload_hash}


def test_other_kinds_of_workloads_give_no_initial_programs(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.tasks = [CONV]
    begin(farm, compiler, LARGER)
    farm.drain()
    assert seeds_of(farm, LARGER) == {LARGER.workload_hash: ()}


def test_the_nearest_are_of_the_same_kind_and_about_as_much_work() -> None:
    tags = {"a": "SSR2:10", "b": "SSR2:30", "c": "SSR2:21", "d": "SSSR2:20", "e": "SSR2:20", "f": "SSR2:19"}
    assert nearest("e", "SSR2:20", tags) == ["c", "f", "a", "b"]
    assert nearest("e", "SR1:20", tags) == []
