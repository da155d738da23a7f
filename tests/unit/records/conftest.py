"""The contract of `records/` is tested on SQLite and, where it is installed, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from records.storage.database import Database
from tests.services import Emptied, sqlite
from tests.unit.records.farm import Farm, make_job


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        emptied: Emptied = request.getfixturevalue("emptied")
        emptied.empty()
        return emptied.url
    return sqlite(tmp_path / "tunefarm.db")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url, busy_timeout_s=10.0)
    yield database
    database.close()


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One transaction for the whole test."""
    with database.begin() as session:
        yield session


@pytest.fixture
def farm(session: Session) -> Farm:
    return make_job(session, "job")
