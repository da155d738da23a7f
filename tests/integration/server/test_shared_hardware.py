"""Workers of one machine that measure on the same cores get leases in turns."""

from __future__ import annotations

from core.worker import WorkerState

from .conftest import Service, Worker
from .requests import leased, results
from .test_fleet import tuning_job


def test_workers_on_the_same_cores_measure_in_turns_and_the_service_says_so(service: Service) -> None:
    def worker(name: str, boot_id: str, *cores: str) -> Worker:
        made = Worker(service.fleet, id=name, boot_id=boot_id, hardware=cores)
        made.call(slots=0)
        return made

    first, second = worker("first", "b1", "cpu0", "cpu1"), worker("second", "b1", "cpu1", "cpu2")
    beside, elsewhere = worker("beside", "b1", "cpu3"), worker("elsewhere", "b2", "cpu0", "cpu1")
    unknown = worker("unknown", "", "cpu0")
    tuning_job(service, first, count=8)
    lease = leased(first, slots=1)
    assert second.call(slots=1).lease is None
    # A worker that waits tries again in each poll, and hides no work from others.
    assert second.call(slots=1, wait_s=0.5).lease is None
    for other in (beside, elsewhere, unknown):
        leased(other, slots=1)
    shown = {one["id"]: one["shares_with"] for one in service.http.get("/v1/workers").json()["items"]}
    assert shown == {"first": ["second"], "second": ["first"], "beside": [], "elsewhere": [], "unknown": []}
    first.call(results=results(lease), slots=0)
    leased(second, slots=1)
    assert first.call(slots=1).lease is None
    second.call(WorkerState.OFFLINE)
    leased(first, slots=1)
    shown = {one["id"]: one["shares_with"] for one in service.http.get("/v1/workers").json()["items"]}
    assert shown["first"] == []
