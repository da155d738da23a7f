"""The cost of a round is independent of the number of events, which is bounded."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from records.jobs import events
from records.storage.database import Database
from tests.unit.scheduler.farm import Farm

MILLION = 1_000_000
# Steps of SQLite's virtual machine between two calls of its progress handler.
STEPS = 100


def insert_progress(file: Path, count: int) -> None:
    """Insert events as reports append them."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    data = '{"trials_done": 1, "trials_issued": 4}'
    with sqlite3.connect(file) as connection:
        connection.execute(
            f"{numbers} INSERT INTO events (job_id, kind, data, at) "
            f"SELECT 'job', 'progress', '{data}', 1000.0 FROM n"
        )
    connection.close()


def steps_of_a_round(file: Path) -> int:
    """Return how many steps SQLite takes to plan a round, in hundreds."""
    farm, steps = Farm(Database(f"sqlite:///{file}")), 0

    def count() -> None:
        nonlocal steps
        steps += 1

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(count, STEPS)

    event.listen(farm.database._engine, "checkout", watch)
    farm.context.wake("round", "job")
    farm.drain()
    farm.database.close()
    return steps


def begin(farm: Farm, trials: int) -> None:
    farm.submit(trials=trials)
    farm.plug_in()
    farm.context.wake("intake", "job")
    farm.drain()


@pytest.mark.slow_lane
def test_a_round_does_not_read_a_million_events(farm: Farm, database_file: Path, tmp_path: Path) -> None:
    begin(farm, trials=100)
    lease = farm.lease()
    assert lease is not None
    farm.report(lease)
    farm.database.close()
    few, many = (Path(shutil.copy(database_file, tmp_path / name)) for name in ("few.db", "many.db"))
    insert_progress(many, MILLION)
    usual = steps_of_a_round(few)
    assert usual > 10, "a round was planned"
    assert abs(steps_of_a_round(many) - usual) <= 0.05 * usual
    with Database(f"sqlite:///{many}").begin() as session:
        rounds = events.of_kinds(session, "job", ["round"])
    assert [one.data["round"] for one in rounds] == [0, 1]


def kinds(farm: Farm) -> Counter[str]:
    with farm.database.begin() as session:
        return Counter(one.kind for one in events.since(session, "job", 0))


def test_sweeps_leave_the_last_event_of_progress(farm: Farm, database_file: Path) -> None:
    begin(farm, trials=100)
    insert_progress(database_file, 2500)
    others = kinds(farm) - Counter({"progress": 2500})
    for left in (1500, 500, 1, 1):
        farm.sweep()
        assert kinds(farm)["progress"] == left
    with farm.database.begin() as session:
        newest = events.latest(session, "job", 1)
        assert events.last_of_kind(session, "job", "progress") == newest[0]
    assert kinds(farm) - Counter({"progress": 1}) >= others


def test_a_finished_job_keeps_one_event_of_progress(farm: Farm) -> None:
    begin(farm, trials=20)
    while not farm.job().state.finished:
        farm.drain()
        lease = farm.lease(limit=1)
        assert lease is not None
        farm.report(lease)
        farm.drain()
        farm.now += 5
    assert kinds(farm)["progress"] == 1
