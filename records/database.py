"""Opening the database, its transactions and its migration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session


class StorageError(Exception):
    """The database can't be used; the message says why and what to do."""


class Database:
    """One process's connections to the database at an SQLAlchemy `url`."""

    def __init__(self, url: str, *, busy_timeout_s: float = 30.0) -> None:
        """Opens nothing yet. Raises StorageError when `url` is not a database URL."""
        raise NotImplementedError

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """One transaction: committed on success, rolled back on any error. Raises StorageError."""
        raise NotImplementedError
        yield

    def migrate(self) -> None:
        """Bring the schema up to this code's; any number of processes may call it at once. Raises StorageError."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
