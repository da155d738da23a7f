"""The contract of `records/` is tested on SQLite and, where it is installed, on PostgreSQL.

A database file is made once and copied for each test; a PostgreSQL database is emptied.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from records.storage.database import Database
from tests.services import Emptied
from tests.unit.records.farm import Farm, make_job


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "empty.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        emptied: Emptied = request.getfixturevalue("emptied")
        emptied.empty()
        return emptied.url
    copy = tmp_path / "tunefarm.db"
    shutil.copy(request.getfixturevalue("empty_file"), copy)
    return f"sqlite:///{copy}"


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
