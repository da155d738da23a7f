"""Transactions that run side by side."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable

from sqlalchemy.orm import Session

from core.measurement import Outcome
from core.worker import DesiredState, WorkerState
from records.fleet import leases, workers
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import events, tasks, trials
from records.storage.database import Database
from tests.devices import DEVICE
from tests.unit.records.farm import all_at_once, make_job, measured


class TestManyWorkersAtOnce:
    def test_no_trial_is_leased_twice_and_none_is_lost(self, database: Database) -> None:
        issued = self._issue(database, 60)
        taken: list[int] = []

        def work(name: str) -> None:
            while batch := self._take_and_report(database, name, len(taken)):
                taken.extend(batch)

        all_at_once([functools.partial(work, f"worker {number}") for number in range(4)])
        assert sorted(taken) == issued
        with database.begin() as session:
            assert trials.counts(session, "job") == trials.TrialCounts(0, 0, done=60)

    def test_concurrent_evictions_and_expiries_lose_no_trial(self, database: Database) -> None:
        names = [f"worker {number}" for number in range(3)]
        self._issue(database, 40)
        with database.begin() as session:
            for name in names:
                workers.register(session, WorkerSession(name, "s", WorkerState.READY, DEVICE), 20.0)
        done = threading.Event()

        def until_done(act: Callable[[int], None]) -> None:
            try:
                for turn in itertools.count():
                    if done.is_set():
                        return
                    act(turn)
            finally:
                done.set()

        def work(name: str, turn: int) -> None:
            self._take_and_report_or_not(database, name, turn)
            with database.begin() as session:
                if trials.counts(session, "job").done == 40:
                    done.set()

        def meddle(turn: int) -> None:
            with database.begin() as session:
                leases.evict(session, names[turn % 3], now=20.0)
            with database.begin() as session:
                leases.expire(session, now=1000.0, max_attempts=1000)
            with database.begin() as session:
                workers.set_desired_state(session, names[turn % 3], DesiredState.WORK)
            time.sleep(0.05)

        acts = [functools.partial(work, name) for name in names] + [meddle, meddle]
        all_at_once([functools.partial(until_done, act) for act in acts])
        with database.begin() as session:
            assert trials.counts(session, "job") == trials.TrialCounts(0, 0, done=40)
            assert {run.outcome for run in trials.for_task(session, self._task(session))} == {Outcome.OK}

    def test_events_reach_a_reader_in_order(self, database: Database) -> None:
        self._issue(database, 1)
        failures: list[Exception] = []

        def write(name: str) -> None:
            try:
                for number in range(15):
                    with database.begin() as session:
                        events.append(session, "job", "progress", {"n": f"{name} {number}"}, now=1.0)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(f"writer {number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        read: list[events.Event] = []
        while any(thread.is_alive() for thread in threads):
            read += self._read(database, read)
        read += self._read(database, read)
        assert failures == []
        assert len([event for event in read if event.kind == "progress"]) == 45

    def _issue(self, database: Database, count: int) -> list[int]:
        with database.begin() as session:
            return make_job(session, "job").issue(*(f"t{number}" for number in range(count)))

    def _take_and_report(self, database: Database, name: str, turn: int) -> list[int]:
        with database.begin() as session:
            lease = leases.acquire_lease(
                session,
                f"{name}, {turn}",
                WorkerSession(name, "s", WorkerState.READY, DEVICE),
                3,
                now=20.0,
                ttl_s=60.0,
            )
        if lease is None:
            return []
        results = [LeaseResult(measured(1e-3), trial.id) for trial in lease.trials]
        with database.begin() as session:
            assert leases.report(session, lease.id, "s", results, now=30.0).closed
        return [trial.id for trial in lease.trials]

    def _take_and_report_or_not(self, database: Database, name: str, turn: int) -> None:
        """Serve two calls of a worker; the lease may be gone at the second."""
        with database.begin() as session:
            workers.heartbeat(session, WorkerSession(name, "s", WorkerState.READY), 20.0)
            if not workers.may_lease(session, name, "s"):
                return
            worker = WorkerSession(name, "s", WorkerState.READY, DEVICE)
            lease = leases.acquire_lease(
                session, f"{name}, turn {turn}", worker, limit=3, now=20.0, ttl_s=60.0
            )
        if lease is not None:
            results = [LeaseResult(measured(1e-3), trial.id) for trial in lease.trials]
            with database.begin() as session:
                if workers.heartbeat(session, WorkerSession(name, "s", WorkerState.READY), 30.0) is not None:
                    leases.report(session, lease.id, "s", results, now=30.0)

    def _task(self, session: Session) -> int:
        [task] = tasks.for_job(session, "job")
        return task.id

    def _read(self, database: Database, read: list[events.Event]) -> list[events.Event]:
        with database.begin() as session:
            return events.since(session, "job", read[-1].id if read else 0, 1000)
