"""Which schedules go into a model, and whose are tried apart before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from compiler.importing.model import ExtractedTask
from records.schedules import Record
from scheduler import artifacts
from scheduler.artifacts import MAX_IMPORTED, choose
from search.measurement import Outcome
from tests.unit.scheduler.farm import CONV, DEVICE, MATMUL

UNSCHEDULED = "[[],[]]"


def record(task: ExtractedTask, latency_s: float, source: str = "trial", trace: str = UNSCHEDULED) -> Record:
    plain = Record(
        workload_hash=task.workload_hash,
        device_class=DEVICE.key,
        trace=trace,
        program=None,
        latency_s=latency_s,
        run_secs=(latency_s,),
        outcome=Outcome.OK,
        target=DEVICE.target,
        source="trial",
        created_at=0.0,
    )
    return replace(plain, source=source)  # type: ignore[arg-type]


@dataclass
class Apart:
    """Notes what is tried apart, and finds fault with what it is told to."""

    faulty: frozenset[str] = frozenset()
    tried: list[list[str]] = field(default_factory=list)

    def __call__(self, pairs: Sequence[tuple[str, str]], target: str) -> list[str]:
        assert target == DEVICE.target
        if pairs:
            self.tried.append([trace for _, trace in pairs])
        return ["it crashed the compiler" if trace in self.faulty else "" for _, trace in pairs]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Apart:
    found = Apart()
    monkeypatch.setattr(artifacts, "try_traces", found)
    return found


def chosen(*records: Record) -> dict[str, Record]:
    return choose([MATMUL, CONV], records, DEVICE.target)


def test_the_first_of_each_task_is_chosen(apart: Apart) -> None:
    fast, slow, other = record(MATMUL, 1e-3), record(MATMUL, 2e-3), record(CONV, 1e-3)
    strange = replace(fast, workload_hash="of another model")
    assert chosen(fast, slow, other, strange) == {MATMUL.workload_hash: fast, CONV.workload_hash: other}
    assert apart.tried == [], "our own are known"


def test_one_that_does_not_apply_gives_way_to_the_next(
    apart: Apart, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = record(MATMUL, 1e-3, trace="no trace"), record(MATMUL, 2e-3)
    assert chosen(bad, good) == {MATMUL.workload_hash: good}
    assert chosen(bad) == {}
    assert f"a schedule of {MATMUL.workload_hash} (trial) is left out" in caplog.text


def test_imported_ones_are_tried_apart_first(apart: Apart) -> None:
    same = [record(task, 1e-3, "import", f"{UNSCHEDULED} ") for task in (MATMUL, CONV)]
    own = record(MATMUL, 2e-3)
    assert chosen(*same, own) == {each.workload_hash: each for each in same}
    assert apart.tried == [[each.trace for each in same]], "all in one child"


def test_an_imported_one_that_does_harm_is_left_out(apart: Apart, caplog: pytest.LogCaptureFixture) -> None:
    harmful = record(MATMUL, 1e-3, "import", f"{UNSCHEDULED} ")
    apart.faulty = frozenset({harmful.trace})
    own = record(MATMUL, 2e-3)
    assert chosen(harmful, own) == {MATMUL.workload_hash: own}
    assert "(import) is left out: it crashed the compiler" in caplog.text


def test_of_many_imported_ones_only_a_few_are_tried(apart: Apart) -> None:
    many = [record(MATMUL, 1e-3, "import", f"{number}") for number in range(MAX_IMPORTED + 3)]
    apart.faulty = frozenset(each.trace for each in many)
    own = record(MATMUL, 2e-3)
    assert chosen(*many, own) == {MATMUL.workload_hash: own}
    assert apart.tried == [[each.trace] for each in many[:MAX_IMPORTED]]
