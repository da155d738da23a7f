"""Programs as TVMScript, for people to read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.storage.statements import insert_missing
from records.storage.tables import TvmscriptRow

# A workload's hash, and the digest of a trace or UNSCHEDULED.
TvmscriptKey: TypeAlias = tuple[str, str]
UNSCHEDULED = ""


@dataclass(frozen=True)
class Tvmscript:
    """A program as TVMScript, and the decisions of its sketch.

    `trace_sha` is the digest of its trace; it is UNSCHEDULED for the workload itself, without `decisions`.
    """

    workload_hash: str
    trace_sha: str
    text: str
    decisions: str = ""

    @property
    def key(self) -> TvmscriptKey:
        return self.workload_hash, self.trace_sha


def add(session: Session, tvmscripts: Sequence[Tvmscript]) -> None:
    """Store TVMScripts that aren't stored yet."""
    # Sorted, so that two transactions that write the same rows can't deadlock.
    for tvmscript in sorted(tvmscripts, key=lambda tvmscript: tvmscript.key):
        insert_missing(session, TvmscriptRow, asdict(tvmscript), key=["workload_hash", "trace_sha"])


def keys(session: Session, hashes: Collection[str]) -> set[TvmscriptKey]:
    """Return the keys of the stored TVMScripts of some workloads."""
    found = select(TvmscriptRow.workload_hash, TvmscriptRow.trace_sha)
    return {(row[0], row[1]) for row in session.execute(found.where(TvmscriptRow.workload_hash.in_(hashes)))}


def of_workload(session: Session, workload_hash: str) -> dict[str, Tvmscript]:
    """Return the TVMScripts of a workload by `trace_sha`."""
    found = session.scalars(select(TvmscriptRow).where(TvmscriptRow.workload_hash == workload_hash))
    return {
        row.trace_sha: Tvmscript(row.workload_hash, row.trace_sha, row.text, row.decisions) for row in found
    }
