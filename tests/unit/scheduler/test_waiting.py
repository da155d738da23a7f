from __future__ import annotations

from records import devices
from records.builders import Builder
from records.devices import WorkerState
from records.jobs import Build, JobState
from tests.devices import DEVICE
from tests.unit.scheduler.farm import Farm

MISSING = (
    "waiting for a worker that builds x86_64 code: "
    "start one of this tunefarm's version with `tunefarm worker --build`"
)


def start_builder(farm: Farm, toolchain: str = DEVICE.toolchain) -> None:
    builder = Builder(("x86_64",), "x86_64", 8, toolchain)
    with farm.database.begin() as session:
        devices.register(session, "builder", "s", None, WorkerState.READY, farm.now, builder=builder)


def test_a_job_that_only_builders_may_build_for_says_so_while_none_is_there(farm: Farm) -> None:
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


def test_a_job_that_leaves_it_open_waits_for_nobody(farm: Farm) -> None:
    farm.plug_in()
    farm.submit()
    assert farm.finish().state is JobState.DONE
