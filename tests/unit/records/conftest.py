"""A database file made once and copied for each test.

TUNEFARM_TEST_POSTGRESQL may name an empty PostgreSQL database by URL: then the contract is tested on it too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from records.database import Database
from records.tables import Base
from tests.unit.records.farm import Farm, make_job

POSTGRESQL = os.environ.get("TUNEFARM_TEST_POSTGRESQL")


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "empty.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture(scope="session")
def postgresql() -> str:
    assert POSTGRESQL
    database = Database(POSTGRESQL)
    database.migrate()
    database.close()
    return POSTGRESQL


@pytest.fixture(params=["sqlite", *(["postgresql"] if POSTGRESQL else [])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgresql")
        _clear(url)
        return url
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


def _clear(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()


@pytest.fixture
def farm(session: Session) -> Farm:
    return make_job(session, "job")
