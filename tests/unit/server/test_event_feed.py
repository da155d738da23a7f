"""One poll serves all subscribers, whatever event they wait for."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from core.job import Budget, JobState
from records.jobs import events, jobs, models
from records.jobs.jobs import JobRequest
from records.storage import blobs
from records.storage.database import StorageError
from server import event_feed
from server.event_feed import EventCursor, EventFeed, Page

from .conftest import CountingDatabase


@pytest.fixture(autouse=True)
def database_with_jobs(database: CountingDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs, each with its events: the state in which it was made, and two notes."""
    monkeypatch.setattr(event_feed, "POLL_S", 0.01)
    with database.begin() as session:
        sha = blobs.put(session, b"a model")
        models.add(session, sha, "model", 0.0)
        for job_id in ("a", "b", "c"):
            jobs.create(
                session, job_id, JobRequest(sha, "model", {}, "native", Budget(1)), jobs.Submission(0.0)
            )
            for number in range(2):
                events.append(session, job_id, "note", {"number": number}, 1.0)


def last_id(database: CountingDatabase, job_id: str) -> int:
    with database.begin() as session:
        return events.since(session, job_id, 0)[-1].id


def note(database: CountingDatabase, job_id: str) -> None:
    with database.begin() as session:
        events.append(session, job_id, "note", {"number": 9}, 1.0)


def numbers(page: Page) -> list[object]:
    return [event.data["number"] for event in page.events if event.kind == "note"]


async def waiting(feed: EventFeed, *places: EventCursor) -> list[asyncio.Task[Page]]:
    """Start to wait at each place, and return when the polls that found nothing there have begun."""
    tasks = [asyncio.create_task(feed.wait(place)) for place in places]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in tasks)
    return tasks


def test_a_hundred_watchers_of_three_jobs_share_a_transaction(database: CountingDatabase) -> None:
    places = [EventCursor(job_id, last_id(database, job_id)) for job_id in "abc"]

    async def run() -> int:
        feed = EventFeed(database, asyncio.Event())
        watchers = await waiting(feed, *places[:1] * 98, *places[1:])
        note(database, "a")
        database.transactions = 0
        pages = await asyncio.gather(*watchers[:98])
        assert all(numbers(page) == [9] for page in pages)
        note(database, "b")
        assert numbers(await watchers[98]) == [9]
        assert not watchers[99].done(), "nothing has happened to job c"
        watchers[99].cancel()
        return database.transactions

    assert asyncio.run(run()) < 20, "a few polls, and not one for each watcher"


def test_late_subscribers_get_missed_events(database: CountingDatabase) -> None:
    async def run() -> None:
        feed = EventFeed(database, asyncio.Event())
        late, later = await asyncio.gather(
            feed.wait(EventCursor("a", 0)), feed.wait(EventCursor("a", last_id(database, "a") - 1))
        )
        assert (numbers(late), numbers(later)) == ([0, 1], [1])

    asyncio.run(run())


def test_each_poll_reads_a_limited_number_of_events(
    database: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_MAX_IN_POLL", 2)
    with database.begin() as session:
        assert jobs.advance(session, "a", {JobState.QUEUED}, JobState.FAILED, 1.0)

    async def run() -> list[int]:
        feed, place, seen = EventFeed(database, asyncio.Event()), EventCursor("a", 0), list[int]()
        page = Page([], finished=False)
        while not page.finished:
            page = await feed.wait(place)
            assert 1 <= len(page.events) <= 2
            seen += [event.id for event in page.events]
            place = EventCursor("a", seen[-1])
        return seen

    with database.begin() as session:
        every = [event.id for event in events.since(session, "a", 0)]
    assert asyncio.run(run()) == every


def test_events_of_a_deleted_job_end(database: CountingDatabase) -> None:
    async def run() -> None:
        feed = EventFeed(database, asyncio.Event())
        assert await feed.wait(EventCursor("gone", 0)) == Page([], finished=True)
        with pytest.raises(jobs.JobNotFound):
            await feed.read(EventCursor("gone", 0))

    asyncio.run(run())


def test_a_storage_failure_ends_current_subscriptions_only(
    database: CountingDatabase,
) -> None:
    place = EventCursor("a", last_id(database, "a"))

    async def run() -> None:
        feed = EventFeed(database, asyncio.Event())
        watchers = await waiting(feed, place, place)
        database.failing = True
        ends = await asyncio.gather(*watchers, return_exceptions=True)
        assert [type(end) for end in ends] == [StorageError] * 2
        database.failing = False
        (again,) = await waiting(feed, place)
        note(database, "a")
        assert numbers(await again) == [9]

    asyncio.run(run())


def test_a_subscriber_that_leaves_does_not_affect_the_others(database: CountingDatabase) -> None:
    place = EventCursor("a", last_id(database, "a"))

    async def run() -> None:
        feed = EventFeed(database, asyncio.Event())
        leaves, stays = await waiting(feed, place, place)
        leaves.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaves
        note(database, "a")
        assert numbers(await stays) == [9]

    asyncio.run(run())


def test_a_stopping_server_ends_all_subscriptions(
    database: CountingDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "POLL_S", 3600.0)
    place = EventCursor("a", last_id(database, "a"))

    async def run() -> None:
        stopping = asyncio.Event()
        feed = EventFeed(database, stopping)
        watchers = await waiting(feed, place, place)
        stopping.set()
        assert await asyncio.gather(*watchers) == [Page([], finished=False)] * 2

    asyncio.run(run())
