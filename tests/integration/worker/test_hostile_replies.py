"""A compromised child may send anything to the agent. Only its own candidate fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from core.measurement import Measurement, Outcome
from proto import fleet_pb2
from proto.child_pb2 import ChildReply, RefusedCandidates
from tests.integration.worker.agents import BRISK, with_fleet, working
from tests.integration.worker.executors import GENEROUS, build_request, child_of_next, with_executor
from tests.integration.worker.fake_fleet import LIMITS, FakeFleet
from worker.runner import child_messages
from worker.runner.executor import Executor
from worker.runner.frames import MAX_REPLY_BYTES

OK = fleet_pb2.Outcome.OUTCOME_OK


def once(reply: ChildReply) -> str:
    """Return a workload for `FaultRunner.do_reply`: a number of repetitions, and the bytes."""
    return f"1 {reply.SerializeToString().hex()}"


def measurement(**fields: Any) -> str:
    given: dict[str, Any] = {"outcome": OK, "run_s": [0.1]} | fields
    return once(ChildReply(measurement=fleet_pb2.Measurement(**given)))


REPLIES = {
    "no message": "1 ff",
    "too long": f"{MAX_REPLY_BYTES + 1} 78",
    "deep": f"{100_000} 0b",
    "no reply": "1 ",
    "no UTF-8": "1 5201ff",
    "no seconds": measurement(run_s=[float("nan")]),
    "many repeats": measurement(run_s=[0.1] * 2000),
    "endless build": measurement(build_s=float("inf")),
    "no outcome": measurement(outcome=99),
    "another request's": once(ChildReply(refused=RefusedCandidates(numbers=[7]))),
    "long": once(ChildReply(failed="x" * 100_000)),
}


@pytest.mark.parametrize("trace", ["run reply", "build reply"])
def test_a_hostile_reply_fails_only_its_candidate(trace: str) -> None:
    async def work(executor: Executor) -> None:
        child = await child_of_next(executor)
        for name, reply in REPLIES.items():
            result = await executor.measure(build_request(trace, reply), GENEROUS)
            assert result.outcome is (Outcome.RUN_ERROR if trace == "run reply" else Outcome.BUILD_ERROR), (
                name
            )
            assert result.error, name
            result.error.encode()
            assert len(result.error) < 10_000, name
            before, child = child, await child_of_next(executor)
            assert child != before, f"{name}: the child was replaced"

    with_executor(work)


def test_a_hostile_reply_to_an_export_fails_only_its_candidate() -> None:
    async def work(executor: Executor) -> None:
        for reply in ("1 ", f"{child_messages.MAX_EXPORT_REPLY_BYTES + 1} 78", "1 ff"):
            hostile = replace(build_request("run reply", reply), export=True)
            result = await executor.export(hostile, GENEROUS)
            assert isinstance(result, Measurement)
            assert result.outcome is Outcome.BUILD_ERROR

    with_executor(work, builds=True)


@pytest.mark.slow
def test_a_message_of_72_megabytes_fails_only_its_candidate() -> None:
    """It was once sent again and again to the service, which accepts 64 MiB."""

    async def work(fleet: FakeFleet) -> None:
        # Busy cores may take minutes to write and to read it.
        fleet.offer("ok", "run flood", "ok 2", limits=replace(LIMITS, run_timeout_s=600.0))
        async with working(fleet):
            await fleet.until(lambda: len(fleet.stored) == 3)
        assert fleet.outcomes() == ["ok", "run_error", "ok"]

    with_fleet(work)


@pytest.mark.parametrize("reply", ["long", "no seconds"])
def test_the_agent_reports_only_valid_results(reply: str) -> None:
    async def work(fleet: FakeFleet) -> None:
        fleet.workloads["hostile"] = REPLIES[reply]
        fleet.offer("run reply", workload="hostile")
        async with working(fleet, BRISK) as worker:
            await fleet.until(lambda: len(fleet.stored) == 1)
            assert not worker.running.done()
        assert fleet.outcomes() == ["run_error"]

    with_fleet(work)
