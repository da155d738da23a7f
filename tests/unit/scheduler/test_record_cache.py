"""Records are read once, and no new one is missed."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from core.measurement import Outcome
from records import devices
from records.jobs import tasks
from records.schedules import schedules
from records.schedules.schedules import Record
from records.storage.database import Database
from records.storage.tables import RecordRow
from scheduler.planning.record_cache import OVERLAP_S, STALE_S, RecordCache
from tests.devices import DEVICE
from tests.services import Emptied
from tests.unit.conftest import Clock
from tests.unit.records.farm import put_measured
from tests.unit.scheduler.farm import Farm

START = 1000.0


def record(workload: str, trace: str, at: float, latency_s: float = 1e-3) -> Record:
    return Record(
        workload, DEVICE.key, trace, None, latency_s, (latency_s,), Outcome.OK, "", "trial", created_at=at
    )


@pytest.fixture(autouse=True)
def prepared(farm: Farm) -> None:
    prepare(farm)


def prepare(farm: Farm) -> None:
    with farm.database.begin() as session:
        devices.put_class(session, DEVICE)
        for name in ("w1", "w2"):
            tasks.put_workload(session, name, "{}")


def put(farm: Farm, *records: Record) -> None:
    with farm.database.begin() as session:
        put_measured(session, *records)


def read(farm: Farm, record_cache: RecordCache, *names: str) -> dict[str, set[tuple[str, float | None]]]:
    with farm.database.begin() as session:
        found = record_cache.records(session, DEVICE.key, names)
    return {name: {(r.trace, r.latency_s) for r in records} for name, records in found.items()}


@pytest.fixture
def record_cache(clock: Clock) -> RecordCache:
    return RecordCache(clock)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The traces that each query for records returned."""
    noted: list[list[str]] = []
    real = schedules.of_workloads

    def noting(*args: Any) -> list[Record]:
        found = real(*args)
        noted.append([each.trace for each in found])
        return found

    monkeypatch.setattr(schedules, "of_workloads", noting)
    return noted


def settle(farm: Farm, record_cache: RecordCache, clock: Clock, *names: str) -> None:
    """Read until only new records have to be read."""
    for _ in range(3):
        read(farm, record_cache, *names)
        clock.now += OVERLAP_S


def test_the_cache_adds_new_records_and_replaces_changed_records(
    farm: Farm, record_cache: RecordCache, clock: Clock, asked: list[list[str]]
) -> None:
    assert read(farm, record_cache, "w1") == {"w1": set()}
    put(farm, record("w1", "a", START), record("w2", "a", START))
    assert read(farm, record_cache, "w1") == {"w1": {("a", 1e-3)}}
    settle(farm, record_cache, clock, "w1")
    put(farm, record("w1", "b", START + 500), record("w1", "a", START + 500, 2e-3))
    asked.clear()
    assert read(farm, record_cache, "w1") == {"w1": {("a", 2e-3), ("b", 1e-3)}}
    assert asked == [["b", "a"]]
    assert read(farm, record_cache, "w1", "w2") == {"w1": {("a", 2e-3), ("b", 1e-3)}, "w2": {("a", 1e-3)}}


def test_a_clock_that_was_set_back_hides_nothing(farm: Farm, record_cache: RecordCache, clock: Clock) -> None:
    put(farm, record("w1", "a", START))
    settle(farm, record_cache, clock, "w1")
    put(farm, record("w1", "b", START - 3600), record("w1", "a", START - 3500, 2e-3))
    assert read(farm, record_cache, "w1") == {"w1": {("a", 2e-3), ("b", 1e-3)}}


def test_a_record_that_shows_up_late_is_not_missed(
    farm: Farm, record_cache: RecordCache, clock: Clock
) -> None:
    """Of two transactions, the one that drew its ids first may end last."""
    put(farm, record("w1", "a", START))
    settle(farm, record_cache, clock, "w1")
    put(farm, record("w1", "b", START))
    renumber(farm, "b", 10)
    read(farm, record_cache, "w1")
    put(farm, record("w1", "late", START))
    renumber(farm, "late", 5)
    clock.now += OVERLAP_S - 1
    assert read(farm, record_cache, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3), ("late", 1e-3)}}


def test_on_postgresql_the_transaction_that_began_first_may_end_last(
    emptied: Emptied, record_cache: RecordCache, clock: Clock
) -> None:
    emptied.empty()
    farm = Farm(Database(emptied.url))
    prepare(farm)
    put(farm, record("w1", "a", START))
    settle(farm, record_cache, clock, "w1")
    with farm.database.begin() as slow:
        put_measured(slow, record("w1", "late", START))
        put(farm, record("w1", "b", START))
        assert read(farm, record_cache, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3)}}
    clock.now += OVERLAP_S - 1
    assert read(farm, record_cache, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3), ("late", 1e-3)}}
    farm.database.close()


def renumber(farm: Farm, trace: str, record_id: int) -> None:
    with farm.database.begin() as session:
        session.execute(update(RecordRow).where(RecordRow.trace == trace).values(id=record_id))


def test_records_are_not_read_again(
    farm: Farm, record_cache: RecordCache, clock: Clock, asked: list[list[str]]
) -> None:
    """Neither in the first seconds, nor with records of other workloads, nor after a long time."""
    put(farm, record("w1", "a", START), record("w2", "a", START))
    for passed_s in (0.0, 1.0, OVERLAP_S, STALE_S):
        clock.now += passed_s
        read(farm, record_cache, "w1")
    put(farm, record("w1", "b", START))
    for passed_s in (0.0, 1.0, OVERLAP_S, STALE_S):
        clock.now += passed_s
        assert read(farm, record_cache, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3)}}
    assert asked == [["a"], ["b"]]


def test_the_workloads_used_least_recently_are_dropped(
    farm: Farm, clock: Clock, asked: list[list[str]]
) -> None:
    """The limit counts records: of two workloads with one each, and two, three are kept."""
    record_cache = RecordCache(clock, max_records=3)
    put(farm, record("w1", "a", START), record("w2", "b", START))
    settle(farm, record_cache, clock, "w1", "w2")
    put(farm, record("w2", "c", START))
    read(farm, record_cache, "w2")
    asked.clear()
    read(farm, record_cache, "w1", "w2")
    assert asked == []
    put(farm, record("w2", "d", START))
    read(farm, record_cache, "w2")
    asked.clear()
    assert read(farm, record_cache, "w1", "w2") == {
        "w1": {("a", 1e-3)},
        "w2": {("b", 1e-3), ("c", 1e-3), ("d", 1e-3)},
    }
    assert asked[0] == ["a"]


def test_a_workload_with_more_records_than_the_cache_is_read(farm: Farm, clock: Clock) -> None:
    record_cache = RecordCache(clock, max_records=1)
    put(farm, record("w1", "a", START), record("w1", "b", START))
    for _ in range(2):
        assert read(farm, record_cache, "w1") == {"w1": {("a", 1e-3), ("b", 1e-3)}}
