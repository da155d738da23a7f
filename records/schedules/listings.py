"""Listings: programs as text that people read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from records.storage.statements import insert_missing
from records.storage.tables import ListingRow

# A workload's hash, and the digest of a trace or UNSCHEDULED.
ListingKey: TypeAlias = tuple[str, str]
UNSCHEDULED = ""


@dataclass(frozen=True)
class Listing:
    """The loop nest of a program, and what its sketch decided.

    `trace_sha` is the digest of its trace; it is UNSCHEDULED for the workload itself, without `decisions`.
    """

    workload_hash: str
    trace_sha: str
    text: str
    decisions: str = ""

    @property
    def key(self) -> ListingKey:
        return self.workload_hash, self.trace_sha


def add(session: Session, listings: Sequence[Listing]) -> None:
    """Store listings, except those that are stored."""
    # In one order, so that two transactions that write the same rows never wait for each other.
    for listing in sorted(listings, key=lambda listing: listing.key):
        insert_missing(session, ListingRow, asdict(listing), key=["workload_hash", "trace_sha"])


def keys(session: Session, hashes: Collection[str]) -> set[ListingKey]:
    """Return the keys of the stored listings of some workloads."""
    found = select(ListingRow.workload_hash, ListingRow.trace_sha)
    return {(row[0], row[1]) for row in session.execute(found.where(ListingRow.workload_hash.in_(hashes)))}


def of_workload(session: Session, workload_hash: str) -> dict[str, Listing]:
    """Return the listings of a workload by `trace_sha`."""
    found = session.scalars(select(ListingRow).where(ListingRow.workload_hash == workload_hash))
    return {
        row.trace_sha: Listing(row.workload_hash, row.trace_sha, row.text, row.decisions) for row in found
    }
