"""Waiting for work: one look for all who wait, then one after the other until nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from core.lease import Candidate, Lease, LeaseId, Limits
from records.storage.database import Database, StorageError
from server.fleet.work_poller import AvailableWork, WorkPoller

LEASE = Lease(LeaseId("lease", 1), "{}", Limits(), 30.0, (Candidate(1, "w", "[]"),))


class CountingDatabase(Database):
    """Counts transactions, and fails while it is told to."""

    looks = 0
    failing = False

    @contextmanager
    def begin(self) -> Iterator[Session]:
        self.looks += 1
        if self.failing:
            raise StorageError("the disk is full")
        with super().begin() as session:
            yield session


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CountingDatabase]:
    made = CountingDatabase(f"sqlite:///{tmp_path}/tunefarm.db")
    made.migrate()
    yield made
    made.close()


def test_all_who_wait_share_a_look(database: CountingDatabase) -> None:
    async def run() -> None:
        watch = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        looks = await asyncio.gather(*(watch.next() for _ in range(100)))
        assert len({id(look) for look in looks}) == 1
        assert looks[0] == AvailableWork(set(), False, frozenset())
        assert await watch.next() is not looks[0]

    asyncio.run(run())
    assert database.looks == 2


def test_one_who_gives_up_does_not_end_it_for_the_others(database: CountingDatabase) -> None:
    async def run() -> None:
        watch = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        first, second = asyncio.create_task(watch.next()), asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == AvailableWork(set(), False, frozenset())

    asyncio.run(run())


def test_a_storage_that_fails_is_everybodys_error_and_the_next_look_is_another(
    database: CountingDatabase,
) -> None:
    async def run() -> None:
        watch = WorkPoller(database, asyncio.Event(), lambda: 0.0)
        database.failing = True
        ends = await asyncio.gather(*(watch.next() for _ in range(3)), return_exceptions=True)
        assert [type(end) for end in ends] == [StorageError] * 3
        database.failing = False
        assert await watch.next() == AvailableWork(set(), False, frozenset())

    asyncio.run(run())


def test_nobody_tries_once_somebody_found_nothing_left(database: CountingDatabase) -> None:
    left, tries = [LEASE, LEASE], []

    def take() -> Lease | None:
        tries.append(len(left))
        return left.pop() if left else None

    async def run() -> None:
        watch, look = (
            WorkPoller(database, asyncio.Event(), lambda: 0.0),
            AvailableWork({"a", "b"}, False, frozenset()),
        )
        found = await asyncio.gather(*(watch.take(look, "a", take) for _ in range(50)))
        assert found == [LEASE, LEASE] + [None] * 48
        assert look.classes == {"b"}
        assert len(watch._turns) == 0, "nobody waits for one any more"

    asyncio.run(run())
    assert tries == [2, 1, 0]


def test_a_server_that_stops_looks_at_once(database: CountingDatabase) -> None:
    async def run() -> None:
        stopping = asyncio.Event()
        stopping.set()
        await WorkPoller(database, stopping, lambda: 0.0).next()

    asyncio.run(run())
    assert database.looks == 1
