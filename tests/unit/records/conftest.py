"""The contract of `records/` is tested on SQLite and, where it is installed, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from records.storage.database import Database
from tests.services import Emptied, renewed_sqlite
from tests.unit.records.farm import Farm, make_job


@pytest.fixture(scope="session")
def sqlite_file(memory: Path) -> Path:
    return memory / "records.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, sqlite_file: Path) -> str:
    if request.param == "postgresql":
        emptied: Emptied = request.getfixturevalue("emptied")
        emptied.empty()
        return emptied.url
    return renewed_sqlite(sqlite_file)


@pytest.fixture(scope="session")
def connect() -> Callable[[str], Database]:
    """All tests share an engine: to compile a statement takes SQLAlchemy longer than to execute it."""
    return cache(lambda url: Database(url, busy_timeout_s=10.0))


@pytest.fixture
def database(url: str, connect: Callable[[str], Database]) -> Iterator[Database]:
    with closing(connect(url)) as database:
        yield database


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One transaction for the whole test."""
    with database.begin() as session:
        yield session


@pytest.fixture
def farm(session: Session) -> Farm:
    return make_job(session, "job")
