"""A service whose compiler and device are quick: real records, real spaces, real lowering, no real code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from records.storage.database import Database
from tests.services import sqlite
from tests.unit.scheduler.farm import FakeCompiler, Farm


@pytest.fixture
def database_file(tmp_path: Path) -> Path:
    return tmp_path / "tunefarm.db"


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    fake = FakeCompiler()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def farm(database_file: Path, compiler: FakeCompiler) -> Iterator[Farm]:
    database = Database(sqlite(database_file), busy_timeout_s=2.0)
    yield Farm(database)
    database.close()
