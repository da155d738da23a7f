"""Messages for database failures: the cause, and what to do next."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from sqlalchemy import exc


@dataclass(frozen=True)
class DatabaseFailure:
    """Why the database failed, and what to do next. `full`: a disk is full."""

    words: str
    full: bool = False


_LOCKED = DatabaseFailure("another process keeps it locked: stop that process or try again later")
_UNWRITABLE = DatabaseFailure("it isn't writable: check the permissions of the file and its folder")
_SQLITE = {
    sqlite3.SQLITE_FULL: DatabaseFailure("the disk is full: free some space and try again", full=True),
    sqlite3.SQLITE_IOERR: DatabaseFailure(
        "the disk can't be read or written: check its space and its health"
    ),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_CANTOPEN: DatabaseFailure(
        "it can't be opened: check that its folder exists and is writable"
    ),
    sqlite3.SQLITE_READONLY: _UNWRITABLE,
    sqlite3.SQLITE_PERM: _UNWRITABLE,
    sqlite3.SQLITE_CORRUPT: DatabaseFailure("the file is damaged: restore it from a backup or move it away"),
    sqlite3.SQLITE_NOTADB: DatabaseFailure(
        "the file is damaged or not a database: restore it from a backup or move it away"
    ),
}

_RESTARTS = DatabaseFailure("its server stops or starts: try again in a moment")
_CONFLICT = DatabaseFailure("another process changed the same rows at that moment: try again")
_DAMAGED = DatabaseFailure("its files are damaged: restore it from a backup")
_FULL = DatabaseFailure("the disk of its server is full: free some space there and try again", full=True)
# What a server without space says when it refuses a connection. Such an error has no SQLSTATE.
_SAYS_FULL = ("No space left on device", "could not write init file")
# By SQLSTATE.
_POSTGRESQL = {
    "25006": DatabaseFailure("it can only be read: name its primary server in TUNEFARM_DATABASE_URL"),
    "25P03": DatabaseFailure("its server ended an idle transaction: try again"),
    "40001": _CONFLICT,
    "40P01": _CONFLICT,
    "42501": DatabaseFailure("its user may not do this: make that user the owner of the database"),
    "53100": _FULL,
    "53200": DatabaseFailure("its server is out of memory: give it more, or run fewer processes"),
    "53300": DatabaseFailure(
        "its server has no connection free: raise max_connections there, or run fewer processes"
    ),
    "55P03": _LOCKED,
    "57014": DatabaseFailure("a statement took too long and was cancelled: try again later"),
    "57P01": _RESTARTS,
    "57P02": _RESTARTS,
    "57P03": _RESTARTS,
    "58030": DatabaseFailure(
        "the disk of its server can't be read or written: check its space and its health"
    ),
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
_LOST = DatabaseFailure("the connection to its server was lost: try again in a moment")


def cause(error: exc.DBAPIError) -> DatabaseFailure | None:
    """Return the cause of a database failure; None if the statement was wrong."""
    if isinstance(error.orig, sqlite3.Error):
        code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        # The low byte is the error's kind, the others are its details.
        return _SQLITE.get(code & 0xFF)
    state = getattr(error.orig, "sqlstate", None)
    if state in _POSTGRESQL:
        return _POSTGRESQL[state]
    if error.connection_invalidated:
        return _LOST
    if not isinstance(error, exc.OperationalError | exc.InternalError | exc.InterfaceError):
        return None
    # Only the first line, because the others may quote rows.
    message = str(error.orig).strip().partition("\n")[0] or type(error.orig).__name__
    if state is None:
        if any(words in message for words in _SAYS_FULL):
            return _FULL
        return DatabaseFailure(
            f"it can't be reached ({message}): check TUNEFARM_DATABASE_URL and that its server runs"
        )
    return DatabaseFailure(f"its server says: {message}: try again later, its log may say more")
