"""One poll serves all workers that wait, then they try in turn until no work is left."""

from __future__ import annotations

import asyncio

import pytest

from core.lease import Candidate, Lease, LeaseId, Limits
from records.storage.database import StorageError
from server.fleet.work_poller import AvailableWork, WorkPoller

from .conftest import CountingDatabase

NO_WORK = AvailableWork(set(), False, frozenset())
LEASE = Lease(LeaseId("lease", 1), "{}", Limits(), 30.0, (Candidate(1, "w", "[]"),))


async def next_poll(poller: WorkPoller) -> AvailableWork | None:
    return await poller.next_work(lambda _: True, 60.0)


def test_waiting_workers_share_one_poll(database: CountingDatabase) -> None:
    async def run() -> None:
        poller = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        found = await asyncio.gather(*(next_poll(poller) for _ in range(100)))
        assert len({id(work) for work in found}) == 1
        assert found[0] == NO_WORK
        assert await next_poll(poller) is not found[0]

    asyncio.run(run())
    assert database.transactions == 2


def test_a_cancelled_call_does_not_end_the_poll_for_the_others(database: CountingDatabase) -> None:
    async def run() -> None:
        poller = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        first, second = asyncio.create_task(next_poll(poller)), asyncio.create_task(next_poll(poller))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == NO_WORK

    asyncio.run(run())


def test_only_workers_that_a_poll_concerns_are_resumed(database: CountingDatabase) -> None:
    polls = []

    def concerns(work: AvailableWork) -> bool:
        polls.append(work)
        return len(polls) == 3

    async def run() -> None:
        poller = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        found = await poller.next_work(concerns, 60.0)
        assert found is polls[2]
        assert len({id(work) for work in polls}) == 3

    asyncio.run(run())
    assert database.transactions == 3, "a poll ends with the last call that waits"


def test_a_worker_that_no_poll_concerns_waits_for_at_most_its_time(database: CountingDatabase) -> None:
    async def run() -> None:
        poller = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        assert await poller.next_work(lambda _: False, 0.0) is None
        assert await next_poll(poller) == NO_WORK

    asyncio.run(run())


def test_a_poll_begins_no_transaction(database: CountingDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "begin", None)
    assert asyncio.run(next_poll(WorkPoller(database, asyncio.Event(), lambda: 0.0))) == NO_WORK


def test_a_storage_failure_reaches_all_waiting_workers_and_the_next_poll_retries(
    database: CountingDatabase,
) -> None:
    async def run() -> None:
        poller = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        database.failing = True
        ends = await asyncio.gather(*(next_poll(poller) for _ in range(3)), return_exceptions=True)
        assert [type(end) for end in ends] == [StorageError] * 3
        database.failing = False
        assert await next_poll(poller) == NO_WORK

    asyncio.run(run())


def test_after_one_worker_finds_no_work_the_others_do_not_try(database: CountingDatabase) -> None:
    left, tries = [LEASE, LEASE], []

    def take() -> Lease | None:
        tries.append(len(left))
        return left.pop() if left else None

    async def run() -> None:
        poller = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        work = AvailableWork({"a", "b"}, False, frozenset())
        found = await asyncio.gather(*(poller.lease_for_device(work, "w", "a", take) for _ in range(50)))
        assert found == [LEASE, LEASE] + [None] * 48
        assert work.classes == {"b"}
        assert len(poller._locks) == 0, "nobody waits for one any more"

    asyncio.run(run())
    assert tries == [2, 1, 0]


def test_a_stopping_server_answers_waiting_workers(database: CountingDatabase) -> None:
    async def run() -> None:
        stopping = asyncio.Event()
        stopping.set()
        poller = WorkPoller(database, stopping, lambda: 0.0)
        assert await poller.next_work(lambda _: False, 60.0) == NO_WORK

    asyncio.run(run())
    assert database.transactions == 1
