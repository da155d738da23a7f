"""Schedules that can't be compiled are left out of a model; risky ones are tried in a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from compiler.importing.model import ExtractedTask
from compiler.packaging.artifact import TaskEntry
from core.measurement import Outcome
from records.schedules.schedules import Record
from scheduler.steps import artifacts
from scheduler.steps.artifacts import MAX_FOREIGN, describe_replaced, find_uncompilable, select_applicable
from scheduler.steps.selection import AssemblyHistory, Selection, schedule_id
from tests.manifests import MANIFEST
from tests.unit.scheduler.farm import CONV, DEVICE, MATMUL

UNSCHEDULED = "[[],[]]"


def record(task: ExtractedTask, latency_s: float, trace: str = UNSCHEDULED) -> Record:
    return Record(
        workload_hash=task.workload_hash,
        device_class=DEVICE.key,
        trace=trace,
        program={"sketch": "one"},
        latency_s=latency_s,
        run_s=(latency_s,),
        outcome=Outcome.OK,
        target=DEVICE.target,
        source="trial",
        created_at=0.0,
    )


def foreign(task: ExtractedTask, trace: str) -> Record:
    """Return a record of a trace that was imported and has been measured."""
    return replace(record(task, 1e-3, trace), program=None)


@dataclass
class FakeChild:
    """Simulates the child process: records its traces, and rejects the `faulty` ones."""

    faulty: frozenset[str] = frozenset()
    tried: list[list[str]] = field(default_factory=list)

    def __call__(self, pairs: Sequence[tuple[str, str]], target: str) -> list[str]:
        assert target == DEVICE.target
        if pairs:
            self.tried.append([trace for _, trace in pairs])
        return ["it crashed the compiler" if trace in self.faulty else "" for _, trace in pairs]


@pytest.fixture
def child() -> FakeChild:
    return FakeChild()


def chosen(
    child: FakeChild, *records: Record, history: AssemblyHistory | None = None
) -> Mapping[str, Record]:
    known = history or AssemblyHistory()
    selected = select_applicable([MATMUL, CONV], records, DEVICE.target, known, child)
    assert selected is not None
    return selected.chosen


def test_the_fastest_schedule_of_each_task_is_selected(child: FakeChild) -> None:
    fast, slow, other = record(MATMUL, 1e-3), record(MATMUL, 2e-3), record(CONV, 1e-3)
    strange = replace(fast, workload_hash="of another model")
    assert chosen(child, fast, slow, other, strange) == {
        MATMUL.workload_hash: fast,
        CONV.workload_hash: other,
    }
    assert child.tried == [], "our own need no child"


def test_a_schedule_that_does_not_apply_gives_way_to_the_next(
    child: FakeChild, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = record(MATMUL, 1e-3, trace="no trace"), record(MATMUL, 2e-3)
    assert chosen(child, bad, good) == {MATMUL.workload_hash: good}
    assert chosen(child, bad) == {}
    assert f"a schedule of {MATMUL.workload_hash} is left out" in caplog.text


def test_imported_schedules_are_tried_in_a_child_process(child: FakeChild) -> None:
    same = [foreign(task, f"{UNSCHEDULED} ") for task in (MATMUL, CONV)]
    own = record(MATMUL, 2e-3)
    assert chosen(child, *same, own) == {each.workload_hash: each for each in same}
    assert child.tried == [[each.trace for each in same]], "all in one child"


def test_the_scheduler_replays_no_imported_trace(child: FakeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    replayed: list[str] = []
    monkeypatch.setattr(artifacts, "apply_trace", lambda _, trace: replayed.append(trace))
    theirs, own = foreign(MATMUL, f"{UNSCHEDULED} "), record(CONV, 1e-3)
    assert chosen(child, theirs, own) == {MATMUL.workload_hash: theirs, CONV.workload_hash: own}
    assert replayed == [own.trace]


def test_an_imported_schedule_that_crashes_the_child_is_left_out(
    child: FakeChild, caplog: pytest.LogCaptureFixture
) -> None:
    harmful = foreign(MATMUL, f"{UNSCHEDULED} ")
    child.faulty = frozenset({harmful.trace})
    own = record(MATMUL, 2e-3)
    assert chosen(child, harmful, own) == {MATMUL.workload_hash: own}
    assert "is left out: it crashed the compiler" in caplog.text


def test_only_a_few_imported_schedules_are_tried(child: FakeChild) -> None:
    many = [foreign(MATMUL, f"{number}") for number in range(MAX_FOREIGN + 3)]
    child.faulty = frozenset(each.trace for each in many)
    own = record(MATMUL, 2e-3)
    assert chosen(child, *many, own) == {MATMUL.workload_hash: own}
    assert child.tried == [[each.trace] for each in many[:MAX_FOREIGN]]


def test_after_a_schedule_that_did_not_compile_the_next_are_tried_in_a_child_process(
    child: FakeChild,
) -> None:
    first, second, third = (record(MATMUL, 1e-3 * at, trace=UNSCHEDULED + " " * at) for at in (1, 2, 3))
    child.faulty = frozenset({second.trace})
    history = AssemblyHistory(refused={schedule_id(first): "LLVM ERROR"})
    assert (
        chosen(child, first, second, third, record(CONV, 1e-3), history=history)[MATMUL.workload_hash]
        == third
    )
    assert child.tried == [[second.trace], [third.trace]]


def test_uncompilable_schedules_are_found(child: FakeChild) -> None:
    good, bad = record(MATMUL, 1e-3), record(CONV, 1e-3, trace=f"{UNSCHEDULED} ")
    child.faulty = frozenset({bad.trace})
    selected = Selection({each.workload_hash: each for each in (good, bad)}, {})
    assert find_uncompilable([MATMUL, CONV], selected, DEVICE.target, child) == {
        schedule_id(bad): "it crashed the compiler"
    }


def test_subgraphs_without_their_best_schedule_are_named_with_the_reason() -> None:
    names = [TaskEntry(str(at), f"conv{at}", 1, reason=f"reason {at}") for at in range(5)]
    assert describe_replaced(replace(MANIFEST, tasks=(TaskEntry("9", "dense", 1), names[1]))) == (
        "1 of 2 subgraphs runs the fallback schedule: conv1: reason 1"
    )
    slower = replace(names[0], source="trial", share=0.25)
    assert describe_replaced(replace(MANIFEST, tasks=(slower, names[1]))) == (
        "2 of 2 subgraphs run the fallback schedule or a slower schedule (at least 25.0% of the time): "
        "conv0: reason 0; conv1: reason 1"
    )
    assert describe_replaced(replace(MANIFEST, tasks=tuple(names))).endswith(
        "conv2: reason 2; and 2 more, see the manifest"
    )
    assert describe_replaced(MANIFEST) == ""
