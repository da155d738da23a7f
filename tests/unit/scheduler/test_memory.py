"""Records are read once, and what is new is seen all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from records import devices, schedules, tasks
from records.schedules import Record
from scheduler import memory
from scheduler.memory import OVERLAP_S, STALE_S, Memory
from search.measurement import Outcome
from tests.devices import DEVICE
from tests.unit.scheduler.farm import Farm

START = 1000.0


def record(workload: str, trace: str, at: float, latency_s: float = 1e-3) -> Record:
    return Record(
        workload, DEVICE.key, trace, None, latency_s, (latency_s,), Outcome.OK, "", "trial", created_at=at
    )


@pytest.fixture(autouse=True)
def known(farm: Farm) -> None:
    with farm.database.begin() as session:
        devices.put_class(session, DEVICE)
        for name in ("w1", "w2"):
            tasks.put_workload(session, name, "{}")


def put(farm: Farm, *records: Record) -> None:
    with farm.database.begin() as session:
        for each in records:
            schedules.put_measured(session, [each])


def read(farm: Farm, kept: Memory, *names: str) -> dict[str, set[tuple[str, float | None]]]:
    with farm.database.begin() as session:
        found = kept.records(session, DEVICE.key, names)
    return {name: {(r.trace, r.latency_s) for r in records} for name, records in found.items()}


def test_what_is_new_is_added_and_what_changed_replaced(farm: Farm) -> None:
    kept = Memory()
    assert read(farm, kept, "w1") == {"w1": set()}
    put(farm, record("w1", "a", START), record("w2", "a", START))
    assert read(farm, kept, "w1") == {"w1": {("a", 1e-3)}}
    put(farm, record("w1", "b", START + 500), record("w1", "a", START + 500, 2e-3))
    assert read(farm, kept, "w1", "w2") == {"w1": {("a", 2e-3), ("b", 1e-3)}, "w2": {("a", 1e-3)}}


def test_a_record_that_was_stored_a_little_late_is_not_missed(farm: Farm) -> None:
    kept = Memory()
    put(farm, record("w1", "a", START))
    read(farm, kept, "w1")
    put(farm, record("w1", "b", START - OVERLAP_S + 1))
    assert read(farm, kept, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3)}}


def test_what_is_known_is_not_read_again(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, asked = Memory(), []
    put(farm, record("w1", "a", START), record("w1", "b", START + 500))
    for name in ("of_workloads", "since"):
        real = getattr(schedules, name)
        monkeypatch.setattr(
            memory.schedules, name, lambda *args, real=real: asked.append(found := real(*args)) or found
        )
    for _ in range(2):
        read(farm, kept, "w1")
    assert [[each.trace for each in found] for found in asked] == [["a", "b"], ["b"]]
    put(farm, record("w2", "c", START + 500 + STALE_S + 1))
    assert read(farm, kept, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3)}}
    assert [each.trace for each in asked[-1]] == ["a", "b"]


def test_the_oldest_are_forgotten(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LIMIT", 1)
    kept = Memory()
    put(farm, record("w1", "a", START), replace(record("w2", "b", START), latency_s=1e-3))
    for _ in range(2):
        assert read(farm, kept, "w1") == {"w1": {("a", 1e-3)}}
        assert read(farm, kept, "w2") == {"w2": {("b", 1e-3)}}
