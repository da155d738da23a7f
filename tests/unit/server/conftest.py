"""A database that counts its transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from records.storage.database import Database, StorageError
from tests.services import sqlite


class CountingDatabase(Database):
    """Counts transactions and reads, and fails on request."""

    transactions = 0
    failing = False

    @contextmanager
    def begin(self) -> Iterator[Session]:
        with self._counted(), super().begin() as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with self._counted(), super().reading() as session:
            yield session

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.transactions += 1
        if self.failing:
            raise StorageError("the disk is full")
        yield


@pytest.fixture
def database(tmp_path: Path) -> Iterator[CountingDatabase]:
    made = CountingDatabase(sqlite(tmp_path / "tunefarm.db"))
    yield made
    made.close()
