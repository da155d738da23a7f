"""Programs as text, and the search for workloads."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from core.measurement import Outcome
from records.jobs import tasks
from records.schedules import tvmscripts
from records.schedules.schedules import Record
from records.schedules.tvmscripts import UNSCHEDULED, Tvmscript
from tests.devices import DEVICE

from .farm import make_job, put_measured, task_spec


def test_a_tvmscript_is_stored_once(session: Session) -> None:
    make_job(session, "job")
    naive, best = Tvmscript("w1", UNSCHEDULED, "for i in"), Tvmscript("w1", "sha", "for i_0 in", "C SSRS")
    tvmscripts.add(session, [naive])
    tvmscripts.add(session, [replace(naive, text="another one"), best])
    assert tvmscripts.of_workload(session, "w1") == {UNSCHEDULED: naive, "sha": best}
    assert tvmscripts.keys(session, ["w1", "w2"]) == {("w1", UNSCHEDULED), ("w1", "sha")}


def test_workloads_are_found_by_all_words_of_operator_and_shape(session: Session) -> None:
    make_job(session, "job")
    tasks.put_workload(session, "w2", "{}")
    spec = replace(task_spec("job", "w2"), name="pool_100%", signature="float32[1,56] -> float32[1]")
    tasks.add_tasks(session, "job", [spec])
    record = Record("w2", DEVICE.key, "[]", {}, 1e-3, (1e-3,), Outcome.OK, "{}", "trial", 5.0)

    def found(*words: str, device_class: str = DEVICE.key) -> list[str]:
        return [one.hash for one in tasks.search(session, device_class, words, 10)]

    assert found() == []
    put_measured(session, record)
    assert found() == found("POOL", "1,56") == found("100%") == ["w2"]
    assert found("pool", "conv") == found("1_56") == found(device_class="another") == []
