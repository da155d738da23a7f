"""A builder's executor, and an executor that loads a builder's libraries, with real children and faults."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from core.measurement import Measurement, Outcome
from tests.integration.worker.executors import GENEROUS, HASTY_BUILD_ALONG, build_request, gone, with_executor
from worker.runner.executor import Executor
from worker.runner.interface import BuildRequest, Exported
from worker.runner.start_failure import ChildStartError


def to_export(trace: str) -> BuildRequest:
    return replace(build_request(trace), export=True)


async def export_all(executor: Executor, *traces: str) -> list[Exported | Measurement]:
    batch = [to_export(trace) for trace in traces]
    return [
        await executor.export(one, HASTY_BUILD_ALONG, batch[number + 1 :]) for number, one in enumerate(batch)
    ]


def test_candidates_come_back_as_libraries() -> None:
    async def work(executor: Executor) -> None:
        await executor.start()
        assert executor.builds_for == ("x86_64", "aarch64")
        first, refused, last = await export_all(executor, "ok", "build refuse", "ok 2")
        assert first == Exported(b"library of ok", 0.5)
        assert refused == Measurement(Outcome.BUILD_ERROR, error="no such loop")
        assert last == Exported(b"library of ok 2", 0.5)

    with_executor(work, builds=True)


@pytest.mark.parametrize(
    ("fault", "outcome", "says"),
    [
        ("build kill", Outcome.BUILD_ERROR, "SIGKILL during the build"),
        pytest.param(
            *("build hang", Outcome.BUILD_TIMEOUT, "the build took longer than 2 s"), marks=pytest.mark.slow
        ),
        ("run kill", Outcome.BUILD_ERROR, "SIGKILL during the build"),
        ("run raise", Outcome.BUILD_ERROR, "a bug in the runner"),
        ("run scribble", Outcome.BUILD_ERROR, "makes no sense"),
    ],
)
def test_only_the_faulty_export_of_a_batch_fails(fault: str, outcome: Outcome, says: str) -> None:
    async def work(executor: Executor) -> None:
        await executor.start()
        before = executor.child_pid
        first, culprit, last = await export_all(executor, "ok", fault, "ok 2")
        assert isinstance(first, Exported)
        assert isinstance(last, Exported)
        assert isinstance(culprit, Measurement)
        assert culprit.outcome is outcome
        assert says in culprit.error
        assert before is not None
        assert gone(before)

    with_executor(work, builds=True)


def test_a_worker_without_linkers_builds_nothing() -> None:
    async def work(executor: Executor) -> None:
        with pytest.raises(ChildStartError, match="no linker: install one"):
            await executor.start()

    with_executor(work, builds=True, TVM_FAULT_PLATFORMS="")


def test_a_machine_that_is_missing_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def work(executor: Executor) -> None:
        await executor.start()
        assert executor.builds_for == ("x86_64",)

    with_executor(work, builds=True, TVM_FAULT_PLATFORMS="x86_64")
    assert "builds for x86_64 only: no linker: install one" in caplog.text


def test_a_worker_that_measures_asks_for_no_linkers() -> None:
    async def work(executor: Executor) -> None:
        await executor.start()
        assert executor.builds_for == ()

    with_executor(work, TVM_FAULT_PLATFORMS="")


def test_a_library_is_loaded_where_the_child_may_read_and_taken_back(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_text("what a builder made")

    async def work(executor: Executor) -> None:
        came_built = [
            replace(build_request(f"{when} library"), library=str(library)) for when in ("build", "run")
        ]
        loaded = await executor.measure(came_built[0], GENEROUS)
        assert loaded.error == "what a builder made"
        ran = await executor.measure(came_built[1], GENEROUS)
        assert ran.error.endswith("is gone")
        assert str(library) not in ran.error, "it is a copy that the child gets"
        assert library.exists()

    with_executor(work)


def test_a_missing_library_fails_only_its_candidate(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        lost = replace(build_request("ok"), library=str(tmp_path / "nowhere"))
        good = build_request("ok 2")
        outcomes = [await executor.measure(good, GENEROUS, [lost]), await executor.measure(lost, GENEROUS)]
        assert [measurement.outcome for measurement in outcomes] == [Outcome.OK, Outcome.UNKNOWN]
        assert "can't be given to the child" in outcomes[1].error

    with_executor(work)


def test_the_child_dies_with_an_export_that_is_cancelled(tmp_path: Path) -> None:
    async def work(executor: Executor) -> None:
        note = tmp_path / "hanging"
        hanging = replace(to_export("run hang"), module_json=str(note))
        exporting = asyncio.create_task(executor.export(hanging, GENEROUS))
        while not note.exists():
            await asyncio.sleep(0.01)
        exporting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exporting
        assert executor.child_pid is None

    with_executor(work, builds=True)
