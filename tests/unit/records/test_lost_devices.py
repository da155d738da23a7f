"""What a job is told of a device that was lost."""

from __future__ import annotations

from core.worker import WorkerState
from records.fleet import devices, leases
from records.jobs import events, jobs
from records.jobs.events import Event
from tests.unit.records.farm import Farm


def told(farm: Farm) -> list[Event]:
    return [event for event in events.since(farm.session, farm.job_id, 0, 100) if event.kind == "device_lost"]


def test_a_lost_device_is_named_with_what_it_held(farm: Farm) -> None:
    first, *_ = farm.issue("a", "b", "c")
    farm.leased("lease")
    farm.report("lease", [first])
    leases.expire(farm.session, now=100.0)
    (event,) = told(farm)
    assert event.data["worker"] == "worker"
    assert event.data["held"] == 2
    assert jobs.get(farm.session, farm.job_id).message == event.data["message"]
    assert "the worker worker was lost" in event.data["message"]


def test_a_device_that_had_reported_everything_is_not_missed(farm: Farm) -> None:
    issued = farm.issue("a", "b")
    farm.leased("lease")
    farm.report("lease", issued)
    leases.expire(farm.session, now=100.0)
    assert told(farm) == []


def test_work_that_is_given_back_is_no_loss(farm: Farm) -> None:
    device, state = farm.device, WorkerState.READY
    devices.register(farm.session, "worker", "session", device, state, 10.0)
    farm.issue("a", "b")
    farm.leased("lease")
    leases.give_back(farm.session, "worker", "session", now=30.0)
    assert told(farm) == []
