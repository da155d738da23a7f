"""A cache of best schedules on disk, so that they are available while the service isn't."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec
import platformdirs

from tunefarm.client.client import Client, UnreachableError
from tunefarm.client.values import Schedule

_log = logging.getLogger(__name__)

# `schedules` has a row for each requested workload (null: it had no schedule), `answers` one for each set of
# workloads that was requested in one call.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS schedules (
    service TEXT, target TEXT, workload TEXT, schedule TEXT, PRIMARY KEY (service, target, workload)
);
CREATE TABLE IF NOT EXISTS answers (
    service TEXT, target TEXT, workloads TEXT, etag TEXT, PRIMARY KEY (service, target, workloads)
);
"""
_BUSY_S = 30.0


class ScheduleCache:
    """Requests best schedules from a service, in one call for any number of workloads, and keeps the
    responses.

    If a response hasn't changed, the service answers 304. While the service is unavailable, earlier responses
    are returned from `folder`, by default the user's cache. Programs may share the folder.
    """

    def __init__(self, client: Client, target: str = "native", folder: Path | None = None) -> None:
        """Raises OSError if the folder can't be used."""
        self._client = client
        self._of = (client.url, target)
        folder = folder or platformdirs.user_cache_path("tunefarm")
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "schedules.sqlite"
        with self._open() as database:
            database.executescript(_SCHEMA)

    def best_of(self, workloads: Sequence[str]) -> dict[str, Schedule]:
        """Return the best schedules of those workloads that have one, by workload.

        Raises ProblemError, OSError if the folder can't be used, and UnreachableError if the service is
        unavailable and no workload is in the cache. If only some of them are, a warning is logged.
        """
        digest = hashlib.sha256(json.dumps(sorted(set(workloads))).encode()).hexdigest()
        with self._open() as database:
            tag = "SELECT etag FROM answers WHERE service = ? AND target = ? AND workloads = ?"
            found = database.execute(tag, (*self._of, digest)).fetchone()
        try:
            answer = self._client.best_unless(found[0] if found else None, workloads, self._of[1])
        except UnreachableError as error:
            known = self._known(workloads)
            if workloads and not known:
                raise
            _log.warning(
                "%s: %d of %d workloads have a schedule from the cache", error, len(known), len(workloads)
            )
        else:
            if answer is not None:
                self._keep(workloads, digest, answer.schedules, answer.etag)
                return answer.schedules
            known = self._known(workloads)
        return {name: schedule for name, schedule in known.items() if schedule is not None}

    def _known(self, workloads: Sequence[str]) -> dict[str, Schedule | None]:
        one = "SELECT schedule FROM schedules WHERE service = ? AND target = ? AND workload = ?"
        known = {}
        with self._open() as database:
            for name in workloads:
                row = database.execute(one, (*self._of, name)).fetchone()
                if row is not None:
                    known[name] = None if row[0] is None else msgspec.json.decode(row[0], type=Schedule)
        return known

    def _keep(
        self, workloads: Sequence[str], digest: str, schedules: Mapping[str, Schedule], etag: str | None
    ) -> None:
        rows = [
            (*self._of, name, json.dumps(asdict(schedules[name])) if name in schedules else None)
            for name in workloads
        ]
        with self._open() as database:
            database.executemany("INSERT OR REPLACE INTO schedules VALUES (?, ?, ?, ?)", rows)
            database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (*self._of, digest, etag))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the cache's database for one transaction. Raises OSError if the file is damaged or can't be
        read or written."""
        try:
            with contextlib.closing(sqlite3.connect(self._file, timeout=_BUSY_S)) as database, database:
                yield database
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise OSError(
                f"the schedules kept in {self._file} can't be used ({error}): delete the file"
            ) from error
