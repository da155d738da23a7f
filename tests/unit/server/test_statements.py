"""The number of SQL statements of a call is bounded: it decides how many workers a server can take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from core.lease import Lease
from core.worker import WorkerState
from proto.messages import Result, WorkerReport
from records.storage.database import Database
from server.fleet.reconcile import WorkerCall, new_lease, reconcile
from tests.services import sqlite
from tests.unit.records.farm import DEVICE, make_job, measured

READY = WorkerReport("worker", "session", False, WorkerState.READY, DEVICE, slots=16)
# Statements of a call that reports a whole lease and takes the next one, and of a heartbeat.
MOST, HEARTBEAT = 14, 2


@pytest.fixture(params=["sqlite", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    if request.param == "postgresql":
        emptied = request.getfixturevalue("emptied")
        emptied.empty()
        database = Database(emptied.url)
    else:
        database = Database(sqlite(tmp_path / "tunefarm.db"))
    with database.begin() as session:
        yield session
    database.close()


@contextmanager
def counted(session: Session) -> Iterator[list[str]]:
    """Collect the statements that are executed meanwhile."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(session.get_bind(), "before_cursor_execute", note)
    yield seen
    event.remove(session.get_bind(), "before_cursor_execute", note)


def call(session: Session, report: WorkerReport, name: str, now: float) -> Lease | None:
    """Report, and return the next lease. A server takes it in another transaction if a lease was closed."""
    made = WorkerCall(report, None, not report.starting, name, now, 30.0)
    answer = reconcile(session, made)
    return new_lease(session, made) if answer.may_lease else answer.response.lease


def reported(lease: Lease, secs: float | None = 1e-3) -> WorkerReport:
    results = [
        Result(number, lease.id, measured(secs), trial_id=candidate.trial_id)
        for number, candidate in enumerate(lease.candidates, 1)
    ]
    return replace(READY, results=tuple(results))


def test_a_leases_statements_do_not_depend_on_its_size(session: Session) -> None:
    farm = make_job(session, "job")
    farm.issue(*(f"t{number}" for number in range(100)))
    lease = call(session, replace(READY, starting=True), "lease-0", 20.0)
    sizes, costs = [], []
    for number in range(1, 5):
        assert lease is not None
        sizes.append(len(lease.candidates))
        with counted(session) as seen:
            lease = call(session, reported(lease), f"lease-{number}", 20.0 + number)
        assert len(seen) <= MOST, seen
        costs.append(len(seen))
    assert sizes == [8, 16, 16, 16]
    assert len(set(costs)) == 1


def test_a_failure_takes_one_more_statement(session: Session) -> None:
    farm = make_job(session, "job")
    farm.issue("t0", "t1")
    lease = call(session, replace(READY, starting=True, slots=1), "lease", 20.0)
    assert lease is not None
    with counted(session) as seen:
        assert call(session, reported(lease, secs=None), "another", 21.0) is not None
    assert len(seen) <= MOST + 1, seen


def test_a_heartbeat_takes_few_statements(session: Session) -> None:
    farm = make_job(session, "job")
    farm.issue("t0")
    lease = call(session, replace(READY, starting=True), "lease", 20.0)
    assert lease is not None
    with counted(session) as seen:
        busy = replace(READY, state=WorkerState.BUSY, held=lease.id, slots=0)
        again = WorkerCall(busy, None, True, "another", 21.0, 30.0)
        assert reconcile(session, again).response.keeps == lease.id
    assert len(seen) <= HEARTBEAT, seen


def test_a_report_locks_its_job_last(session: Session) -> None:
    """All workers of a job report to it, so the lock must not be held while the results are stored."""
    farm = make_job(session, "job")
    farm.issue("t0", "t1", "t2")
    lease = call(session, replace(READY, starting=True, slots=2), "lease", 20.0)
    assert lease is not None
    with counted(session) as seen:
        assert reconcile(session, WorkerCall(reported(lease), None, True, "another", 21.0, 30.0)).may_lease
    locks = [place for place, one in enumerate(seen) if one.startswith("UPDATE jobs")]
    assert len(locks) == 1
    assert [one.split(" (")[0] for one in seen[locks[0] + 1 :]] == ["INSERT INTO events"]
