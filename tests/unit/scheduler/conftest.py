"""A service whose compiler and device are quick: real records, real spaces, real lowering, no real code."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from records.storage.database import Database
from tests.unit.scheduler.farm import FakeCompiler, Farm


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scheduler") / "empty.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    database.close()
    return path


@pytest.fixture
def database_file(tmp_path: Path, empty_file: Path) -> Path:
    return Path(shutil.copy(empty_file, tmp_path / "tunefarm.db"))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    fake = FakeCompiler()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def farm(database_file: Path, compiler: FakeCompiler) -> Iterator[Farm]:
    database = Database(f"sqlite:///{database_file}", busy_timeout_s=2.0)
    yield Farm(database)
    database.close()
