"""A real agent that builds and one that measures the builds, with an in-memory service."""

from __future__ import annotations

import gc
import hashlib
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from core.lease import LeaseId, Limits
from core.measurement import Built, Measurement
from core.worker import Role, WorkerState
from tests.integration.worker.agents import BRISK, in_state, with_fleet, working
from tests.integration.worker.fake_fleet import FakeFleet
from worker.agent.service import WorkerRefused
from worker.runner.executor import ChildConfig, Executor

BUILDER = replace(BRISK, role=Role.BUILD, build_together=4)
LIBRARY = b"library of ok"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_a_builder_reports_its_role_and_stores_libraries() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "build refuse", "ok 2", build=True)
        async with working(fleet, BUILDER):
            await fleet.until(lambda: len(fleet.stored) == 3 and in_state(fleet, WorkerState.READY))
        assert fleet.outcomes() == ["built", "build_error", "built"]
        assert fleet.stored[1].measurement == Built(sha(LIBRARY), 0.5)
        stored = [(library.session_id, library.lease, library.trial_id) for library in fleet.libraries]
        assert stored == [("session", LeaseId("lease0", 1), 1), ("session", LeaseId("lease0", 1), 3)]
        assert fleet.libraries[0].data == LIBRARY
        for report in fleet.reports:
            assert report.role is Role.BUILD
            assert report.builds_for == (("x86_64", "aarch64") if report.device else ())

    with_fleet(work)


def test_a_builder_names_its_platforms_only_while_it_knows_its_device(tmp_path: Path) -> None:
    sound = tmp_path / "sound"
    sound.touch()

    async def work(fleet: FakeFleet) -> None:
        async with working(fleet, BUILDER, TVM_FAULT_UNTIL=str(sound)):
            await fleet.until(lambda: in_state(fleet, WorkerState.READY))
            sound.unlink()
            fleet.offer("build segfault", "ok", build=True)
            await fleet.until(lambda: in_state(fleet, WorkerState.PROBING))
        for report in fleet.reports:
            assert report.builds_for == (("x86_64", "aarch64") if report.device else ())

    with_fleet(work)


def test_a_candidate_that_kills_the_child_fails_alone() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", "build segfault", "ok 2", "run exit", "ok 3", build=True)
        async with working(fleet, BUILDER):
            await fleet.until(lambda: len(fleet.stored) == 5)
        assert fleet.outcomes() == ["built", "build_error", "built", "build_error", "built"]

    with_fleet(work)


def test_a_library_that_the_service_refuses_is_a_failure_that_says_so() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.refusing = "it is for another machine"
        fleet.offer("ok", build=True)
        async with working(fleet, BUILDER):
            await fleet.until(lambda: len(fleet.stored) == 1)
        ended = fleet.stored[1].measurement
        assert isinstance(ended, Measurement)
        assert (ended.outcome, "it is for another machine" in ended.error) == ("build_error", True)

    with_fleet(work)


@pytest.mark.parametrize(("config", "build"), [(BUILDER, False), (BRISK, True)])
def test_a_builder_ends_if_the_service_does_not_support_builders(config: object, build: bool) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.offer("ok", build=build)
        async with working(fleet, config) as worker:  # type: ignore[arg-type]
            with pytest.raises(WorkerRefused, match="install the same tunefarm version on both sides"):
                await worker.running
        assert fleet.stored == {}

    with_fleet(work)


def test_a_built_candidate_is_fetched_and_loaded() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.blobs[sha(LIBRARY)] = LIBRARY
        fleet.offer("build library", library_sha=sha(LIBRARY))
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 1)
        ended = fleet.stored[1].measurement
        assert isinstance(ended, Measurement)
        assert ended.error == LIBRARY.decode()
        assert fleet.fetched == ["w", sha(LIBRARY)]

    with_fleet(work)


def test_a_library_that_keeps_arriving_damaged_fails_its_own_candidate() -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.blobs[sha(LIBRARY)] = LIBRARY
        fleet.damaged = 100
        fleet.offer("ok", library_sha=sha(LIBRARY), limits=Limits())
        fleet.offer("ok")
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 2)
        assert fleet.outcomes() == ["unknown", "ok"]

    with_fleet(work)


def test_the_linkers_cache_is_removed_with_the_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    executor = Executor(ChildConfig(1, builds=True), {})
    assert [path.name.startswith("tunefarm-linkers-") for path in tmp_path.iterdir()] == [True]
    del executor
    gc.collect()
    assert not [*tmp_path.iterdir()]
