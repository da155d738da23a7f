"""A service with a fake compiler and device: real records, spaces and lowering, but no machine code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from records.storage.database import Database
from scheduler.planning import batch
from tests.services import renewed_sqlite
from tests.unit.scheduler.farm import FakeCompiler, Farm, search_quickly


@pytest.fixture(scope="session")
def database(memory: Path) -> Database:
    """All tests share an engine: to compile a statement takes SQLAlchemy longer than to execute it."""
    return Database(f"sqlite:///{memory}/scheduler.db", busy_timeout_s=2.0)


@pytest.fixture
def database_file(database: Database) -> Path:
    file = Path(database.name)
    renewed_sqlite(file)
    return file


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """A fake compiler, and the search with small populations."""
    monkeypatch.setattr(batch, "propose", search_quickly)
    return FakeCompiler()


@pytest.fixture
def farm(database: Database, database_file: Path, compiler: FakeCompiler) -> Iterator[Farm]:
    with closing(database):
        yield Farm(database, compiler=compiler)
