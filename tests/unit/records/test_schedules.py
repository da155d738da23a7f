from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from core.measurement import Outcome
from records import devices
from records.jobs import tasks
from records.schedules import imports, schedules
from records.schedules.schedules import Record
from tests.devices import DEVICE
from tests.unit.records.farm import best, put_measured, record

OTHER = replace(DEVICE, cores=8)


@pytest.fixture(autouse=True)
def _classes(session: Session) -> None:
    for device in (DEVICE, OTHER):
        devices.put_class(session, device)
    for workload in ("w1", "w2"):
        tasks.put_workload(session, workload, "{}")


class TestBest:
    def test_the_best_schedule_is_the_fastest_success(self, session: Session) -> None:
        fast = record("t2", 1e-3)
        put_measured(session, record("t1", 2e-3), fast, record("t3"), record("t4", 3e-3))
        assert best(session, "w1", DEVICE.key) == fast

    def test_the_best_schedule_is_per_workload_and_class(self, session: Session) -> None:
        one, two = record("t", 2e-3), record("t", 3e-3, workload_hash="w2")
        other = record("t", 1e-3, device_class=OTHER.key)
        put_measured(session, one, two, other)
        assert schedules.best_many(session, ["w1", "w2", "w3"], DEVICE.key) == {"w1": one, "w2": two}
        assert schedules.best_many(session, ["w1", "w2"], OTHER.key) == {"w1": other}
        assert schedules.best_many(session, [], DEVICE.key) == {}

    def test_the_nearest_class_with_a_schedule_stands_in(self, session: Session) -> None:
        far, near = replace(DEVICE, cores=64), replace(DEVICE, cores=3)
        for device in (far, near):
            devices.put_class(session, device)
        slow, fast = record("t", 2e-3, device_class=near.key), record("t", 1e-3, device_class=far.key)
        of_far = record("t", 1e-3, device_class=far.key, workload_hash="w2")
        put_measured(session, slow, fast, of_far)
        claimed = record("t", 1e-9, device_class=near.key, workload_hash="w2", source="import")
        imports.add(session, [claimed], now=0.0)
        found = schedules.best_nearest(session, ["w1", "w2", "w3"], DEVICE.key)
        assert found == {"w1": slow, "w2": of_far}

    def test_without_a_success_there_is_no_best_schedule(self, session: Session) -> None:
        put_measured(session, record("t"))
        assert best(session, "w1", DEVICE.key) is None

    def test_the_best_is_looked_up_by_index(self, session: Session) -> None:
        if session.get_bind().dialect.name != "sqlite":
            pytest.skip("the plan is asked of SQLite")
        query = "SELECT id FROM records WHERE workload_hash = 'w' AND device_class = 'd' AND source = 'trial'"
        fastest = f"{query} AND latency_s > 0 ORDER BY latency_s, id LIMIT 1"
        plan = session.execute(text(f"EXPLAIN QUERY PLAN {fastest}")).all()
        assert len(plan) == 1
        assert "USING COVERING INDEX ix_records_fastest" in plan[0][-1]


class TestRemeasuring:
    def test_the_newest_success_replaces_older_records(self, session: Session) -> None:
        newer = record("t", 2e-3, created_at=6.0)
        put_measured(session, record("t", 1e-3), newer)
        assert schedules.history(session, DEVICE.key) == [newer]

    def test_a_failure_does_not_replace_a_success(self, session: Session) -> None:
        good = record("t", 1e-3)
        put_measured(session, good, record("t"))
        assert best(session, "w1", DEVICE.key) == good

    def test_a_wrong_result_replaces_a_success(self, session: Session) -> None:
        put_measured(session, record("t", 1e-3), record("t", outcome=Outcome.WRONG_RESULT))
        assert best(session, "w1", DEVICE.key) is None

    def test_a_success_replaces_a_failure(self, session: Session) -> None:
        good = record("t", 1e-3)
        put_measured(session, record("t"), good)
        assert schedules.history(session, DEVICE.key) == [good]


class TestHistory:
    def test_the_history_has_programs_of_any_outcome_newest_first(self, session: Session) -> None:
        old, failed, new = (
            record("t1", 1e-3),
            record("t2", created_at=6.0),
            record("t3", 1e-3, created_at=7.0),
        )
        put_measured(session, old, failed, new, record("t4", 1e-3, program=None))
        put_measured(session, record("t5", 1e-3, device_class=OTHER.key))
        assert schedules.history(session, DEVICE.key) == [new, failed, old]
        assert schedules.history(session, DEVICE.key, limit=1) == [new]

    def test_successes_are_ordered_by_workload_and_latency(self, session: Session) -> None:
        slow, fast, other = record("t1", 2e-3), record("t2", 1e-3), record("t", 1.0, workload_hash="w2")
        put_measured(session, other, slow, fast, record("t3"))
        assert schedules.successes(session, DEVICE.key) == [fast, slow, other]
        assert schedules.successes(session, DEVICE.key, ["w2"]) == [other]


class TestRecordsOfWorkloads:
    def test_records_of_workloads_have_any_outcome(self, session: Session) -> None:
        old, failed, imported = (
            record("t1", 1e-3),
            record("t2", created_at=6.0),
            record("t3", 1e-3, created_at=7.0, program=None),
        )
        put_measured(session, old, record("t4", workload_hash="w2"))
        first, _ = schedules.newest(session, DEVICE.key)
        put_measured(session, failed, imported, record("t5", device_class=OTHER.key))
        assert schedules.of_workloads(session, DEVICE.key, ["w1"]) == [old, failed, imported]
        assert schedules.of_workloads(session, DEVICE.key, ["w1"], first) == [failed, imported]
        newer = schedules.ids_of_workloads(session, DEVICE.key, ["w1"], first)
        assert [name for _, name in newer] == ["w1", "w1"]
        assert min(newer)[0] > first
        assert len(schedules.ids_of_workloads(session, DEVICE.key, ["w1", "w2"])) == 4

    def test_the_fastest_records_have_a_program(self, session: Session) -> None:
        slow, fast = record("t1", 2e-3), record("t2", 1e-3)
        put_measured(session, slow, fast, record("t3"), record("t4", 1e-4, program=None), record("t5", 3e-3))
        assert schedules.fastest(session, DEVICE.key, "w1", 2) == [fast, slow]
        assert schedules.fastest(session, DEVICE.key, "w2", 2) == []

    def test_new_records_are_found_and_counted(self, session: Session) -> None:
        assert schedules.newest(session, DEVICE.key) == (0, 0.0)
        assert schedules.last_until(session, DEVICE.key, 100.0) == 0
        put_measured(session, record("t1", 1e-3))
        first, _ = schedules.newest(session, DEVICE.key)
        put_measured(session, record("t2", created_at=6.0), record("t3", created_at=7.0))
        put_measured(session, record("t4", device_class=OTHER.key, created_at=8.0))
        last, at = schedules.newest(session, DEVICE.key)
        assert at == 7.0
        assert schedules.last_until(session, DEVICE.key, 5.5) == first
        assert schedules.last_until(session, DEVICE.key, 7.0) == last
        assert schedules.count_after(session, DEVICE.key, first) == 2
        assert schedules.count_after(session, DEVICE.key, last) == 0

    def test_new_records_are_found_even_if_the_clock_was_set_back(self, session: Session) -> None:
        put_measured(session, record("t1", 1e-3, created_at=5000.0))
        before, _ = schedules.newest(session, DEVICE.key)
        late = record("t2", 1e-3, created_at=5.0)
        put_measured(session, late)
        assert schedules.newest(session, DEVICE.key)[1] == 5.0
        assert schedules.of_workloads(session, DEVICE.key, ["w1"], before) == [late]
        assert schedules.history(session, DEVICE.key)[0] == late

    def test_a_record_that_is_measured_again_is_new(self, session: Session) -> None:
        put_measured(session, record("t1", 1e-3), record("t2", 1e-3))
        before, _ = schedules.newest(session, DEVICE.key)
        again = record("t1", 2e-3, created_at=6.0)
        put_measured(session, again, record("t2", created_at=6.0))
        assert schedules.of_workloads(session, DEVICE.key, ["w1"], before) == [again]
        assert schedules.count_after(session, DEVICE.key, before) == 1


def imported(trace: str, latency_s: float = 1e-9, **changes: object) -> Record:
    return record(trace, latency_s, program=None, source="import", **changes)


class TestImport:
    def test_an_import_survives_a_round_trip(self, session: Session) -> None:
        foreign = imported("t", 1e-3)
        assert imports.add(session, [foreign], now=9.0) == 1
        assert best(session, "w1", DEVICE.key) == replace(foreign, created_at=9.0)

    def test_an_import_does_not_replace_a_record(self, session: Session) -> None:
        ours = record("t1", 2e-3)
        put_measured(session, ours)
        foreign = [imported("t1", 1e-3), imported("t2", 3e-3), imported("t2", 4e-3)]
        assert imports.add(session, foreign, now=9.0) == 1
        assert imports.add(session, foreign, now=9.0) == 0
        assert best(session, "w1", DEVICE.key) == ours

    def test_the_workload_and_the_class_must_be_stored_before(self, session: Session) -> None:
        with pytest.raises(tasks.WorkloadNotFound):
            imports.add(session, [imported("t", workload_hash="w9")], now=9.0)
        with pytest.raises(devices.DeviceClassNotFound):
            imports.add(session, [imported("t", device_class="feed")], now=9.0)

    def test_imported_latencies_are_not_compared_with_measured_latencies(self, session: Session) -> None:
        ours, other = record("t1", 2e-3), record("t2", 3e-3, workload_hash="w2")
        put_measured(session, ours, other)
        imports.add(session, [imported("t9"), imported("t9", workload_hash="w2")], now=9.0)
        assert schedules.best_many(session, ["w1", "w2"], DEVICE.key) == {"w1": ours, "w2": other}
        assert schedules.successes(session, DEVICE.key) == [ours, other]
        assert schedules.of_workloads(session, DEVICE.key, ["w1"]) == [ours]
        assert [name for _, name in schedules.ids_of_workloads(session, DEVICE.key, ["w1"])] == ["w1"]
        [task] = [task for task in tasks.for_job(session, f"of {DEVICE.key}") if task.workload_hash == "w1"]
        assert task.best_s == 2e-3

    def test_workloads_with_only_imports_are_not_training_examples(self, session: Session) -> None:
        tasks.put_workload(session, "w2", "{}", "kind:1")
        imports.add(session, [imported("t", workload_hash="w2")], now=9.0)
        assert tasks.tags(session, DEVICE.key) == {}

    @pytest.mark.parametrize(
        "measured", [record("t", 5.0), record("t"), record("t", outcome=Outcome.WRONG_RESULT)]
    )
    def test_any_measurement_replaces_an_imported_latency(self, session: Session, measured: Record) -> None:
        imports.add(session, [imported("t")], now=4.0)
        put_measured(session, measured)
        assert schedules.history(session, DEVICE.key) == [measured]
        expected = None if measured.latency_s is None else measured
        assert best(session, "w1", DEVICE.key) == expected

    def test_imports_of_a_class_or_of_a_workload_are_deleted_a_few_at_a_time(self, session: Session) -> None:
        ours = record("t1", 2e-3)
        put_measured(session, ours)
        foreign = [imported(f"t{at}", workload_hash=name) for name in ("w1", "w2") for at in range(5)]
        imports.add(session, [*foreign, imported("t", device_class=OTHER.key)], now=9.0)
        first = imports.drop(session, DEVICE.key, "w2", 0, limit=3)
        assert len(first) == 3
        assert len(imports.drop(session, DEVICE.key, "w2", max(first), limit=3)) == 2
        assert len(imports.drop(session, DEVICE.key, None, 0, limit=30)) == 4
        assert schedules.best_many(session, ["w1", "w2"], DEVICE.key) == {"w1": ours}
        assert best(session, "w1", OTHER.key) is not None


def test_only_a_success_has_a_latency() -> None:
    with pytest.raises(ValueError, match="if and only if it succeeded"):
        record("t", 1e-3, outcome=Outcome.UNKNOWN)
    with pytest.raises(ValueError, match="if and only if it succeeded"):
        record("t", None, outcome=Outcome.OK)
