from __future__ import annotations

from core.job import Build, JobState
from core.worker import Role, Vitals, WorkerState
from records.fleet import reservations, workers
from records.fleet.building import Builder
from records.fleet.workers import WorkerSession
from scheduler.steps.rounds import LOOK_INTERVAL_S
from tests.devices import DEVICE
from tests.unit.scheduler.farm import Farm

MISSING = (
    "waiting for a worker that builds x86_64 code: "
    "start one of this tunefarm's version with `tunefarm worker --build`"
)


def start_builder(farm: Farm, toolchain: str = DEVICE.toolchain) -> None:
    builder = Builder(("x86_64",), "x86_64", 8, toolchain)
    with farm.database.begin() as session:
        workers.register(session, WorkerSession("builder", "s", WorkerState.READY, builder=builder), farm.now)


def test_a_job_that_needs_builders_reports_that_none_is_connected(farm: Farm) -> None:
    farm.plug_in()
    farm.submit(build=Build.BUILDER)
    for _ in range(3):
        farm.tick()
    job = farm.job()
    assert (job.state, job.message) == (JobState.TUNING, MISSING)
    start_builder(farm, toolchain="another")
    farm.tick()
    assert farm.job().message == MISSING
    start_builder(farm)
    farm.tick()
    assert farm.job().message == "measuring"


def test_a_job_that_devices_may_build_for_waits_for_no_builder(farm: Farm) -> None:
    farm.plug_in()
    farm.submit()
    assert farm.finish().state is JobState.DONE


WHY = "its check was ended by SIGILL (illegal instruction)"


def message(farm: Farm) -> str:
    """Sweep after wake-ups would look at devices again, and return the job's message."""
    farm.now += LOOK_INTERVAL_S
    farm.sweep()
    return farm.job().message


def test_a_queued_job_names_the_worker_that_probes_or_cannot_measure(farm: Farm) -> None:
    farm.submit()
    assert message(farm) == "waiting for a device: start a worker"
    farm.plug_in(WorkerState.PROBING)
    assert message(farm) == "waiting for a device: worker worker is probing its device"
    farm.plug_in(WorkerState.PROBING, WHY)
    assert message(farm) == f"waiting for a device: worker worker can't measure: {WHY}"
    farm.now += 100
    assert message(farm) == "waiting for a device: start a worker"
    farm.plug_in()
    assert "waiting" not in message(farm)
    assert farm.finish().state is JobState.DONE


def test_a_job_for_an_unknown_class_names_the_worker_and_the_next_step(farm: Farm) -> None:
    farm.submit(target="pi")
    farm.plug_in(WorkerState.PROBING, WHY)
    start = "waiting for a device of class pi: start a worker"
    assert message(farm) == f"{start}; worker worker can't measure: {WHY}"
    farm.plug_in()
    assert message(farm) == start


def test_a_job_reports_its_broken_device_until_the_repair(farm: Farm) -> None:
    farm.plug_in()
    farm.submit()
    for _ in range(2):
        farm.sweep()
    waits = f"waiting for a device of class {DEVICE.title}: worker worker "
    farm.plug_in(WorkerState.PROBING)
    assert message(farm) == waits + "is probing its device"
    farm.plug_in(WorkerState.PROBING, WHY)
    assert message(farm) == waits + f"can't measure: {WHY}"
    farm.plug_in()
    assert message(farm) == "measuring"


def test_a_new_worker_that_cannot_measure_is_named_before_its_class_is_known(farm: Farm) -> None:
    farm.plug_in()
    farm.submit(target=DEVICE.key)
    for _ in range(2):
        farm.sweep()
    with farm.database.begin() as session:
        vitals = Vitals(health_error=WHY)
        workers.register(
            session, WorkerSession("worker", "anew", WorkerState.PROBING, vitals=vitals), farm.now
        )
    start = f"waiting for a device of class {DEVICE.title}: start a worker on it"
    assert message(farm) == f"{start}; worker worker can't measure: {WHY}"


def test_a_measuring_device_hides_the_failure_of_another(farm: Farm) -> None:
    with farm.database.begin() as session:
        vitals = Vitals(health_error=WHY)
        workers.register(session, WorkerSession("broken", "s", WorkerState.PROBING, vitals=vitals), farm.now)
    farm.plug_in()
    farm.submit()
    assert "broken" not in message(farm)
    assert farm.finish().state is JobState.DONE


def test_builders_do_not_count_as_devices_and_missing_builders_are_named(farm: Farm) -> None:
    farm.submit(build=Build.BUILDER)
    with farm.database.begin() as session:
        vitals = Vitals(health_error="no linker: install one")
        workers.register(
            session,
            WorkerSession("builder", "s", WorkerState.PROBING, vitals=vitals, role=Role.BUILD),
            farm.now,
        )
    assert message(farm) == "waiting for a device: start a worker"
    farm.plug_in()
    for _ in range(3):
        farm.tick()
    with farm.database.begin() as session:
        workers.heartbeat(session, WorkerSession("builder", "s", WorkerState.PROBING), farm.now)
    assert message(farm) == f"{MISSING}; worker builder can't build: no linker: install one"


def test_a_job_waits_for_a_device_that_is_reserved_for_another_token_and_says_so(farm: Farm) -> None:
    farm.plug_in()
    farm.submit()
    with farm.database.begin() as session:
        reservations.reserve(session, "worker", "alice", farm.now + 60, farm.now)
    until = f"{reservations.utc(farm.now + 60)}, or until `tunefarm workers unreserve worker`"
    reserved = f"worker worker is reserved for alice until {until}"
    assert message(farm) == f"waiting for a device: {reserved}"
    with farm.database.begin() as session:
        reservations.unreserve(session, "worker")
    assert "waiting" not in message(farm)
    farm.sweep()
    with farm.database.begin() as session:
        reservations.reserve(session, "worker", "alice", farm.now + 60, farm.now)
    assert message(farm) == f"waiting for a device of class {DEVICE.title}: {reserved}"
    with farm.database.begin() as session:
        reservations.unreserve(session, "worker")
    assert message(farm) == "measuring"
    assert farm.finish().state is JobState.DONE
