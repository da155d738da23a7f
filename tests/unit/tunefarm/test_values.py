"""A client's values, and how it splits them."""

from __future__ import annotations

from tunefarm.client.values import ExportedRecord, ExportedWorkload, ScheduleDatabase


def test_a_database_is_sent_in_parts_that_hold_all_of_it() -> None:
    workloads = [ExportedWorkload(f"w{n}", "m" * (1 << 20) if n < 9 else "{}") for n in range(12)]
    records = [ExportedRecord(f"w{n % 11}", f"[{n}]", (1.0,), "{}") for n in range(2500)]
    database = ScheduleDatabase(tuple(workloads), tuple(records))
    parts = list(database.parts())
    assert len(parts) >= 3
    for part in parts:
        assert len(part.records) <= 1000
        assert sum(len(one.module_json) for one in part.workloads) <= 5 << 20
        assert {record.workload for record in part.records} <= {one.hash for one in part.workloads}
    assert sorted(r.trace for part in parts for r in part.records) == sorted(r.trace for r in records)
    assert {one.hash for part in parts for one in part.workloads} == {one.hash for one in workloads}
    assert list(ScheduleDatabase((), ()).parts()) == [ScheduleDatabase((), ())]
