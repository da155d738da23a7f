"""Builders: workers that measure nothing, and build what devices of other classes measure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from records.storage.tables import BuilderRow


@dataclass(frozen=True)
class Builder:
    """The machines that a worker builds for (`x86_64`, `aarch64`), the one that it runs on and its cores.

    It builds for devices of its own toolchain only: the code of another one is another kernel.
    """

    builds_for: tuple[str, ...]
    machine: str
    cores: int
    toolchain: str


def enrol(session: Session, worker_id: str, builder: Builder | None) -> None:
    """Note what a worker builds for; None: it is no builder. The caller has written to the worker before."""
    session.execute(delete(BuilderRow).where(BuilderRow.worker_id == worker_id))
    if builder is None or not builder.builds_for:
        return
    same = {"worker_id": worker_id, "cores": builder.cores, "toolchain": builder.toolchain}
    names = dict.fromkeys(builder.builds_for)
    rows = [same | {"machine": name, "own": name == builder.machine} for name in names]
    session.execute(insert(BuilderRow), rows)


def by_worker(session: Session) -> dict[str, Builder]:
    """Every builder that ever was one until it became something else, alive or not."""
    rows: defaultdict[str, list[BuilderRow]] = defaultdict(list)
    for row in session.scalars(select(BuilderRow).order_by(BuilderRow.own.desc(), BuilderRow.machine)):
        rows[row.worker_id].append(row)
    return {worker_id: _builder(theirs) for worker_id, theirs in rows.items()}


def _builder(rows: list[BuilderRow]) -> Builder:
    own = next((row.machine for row in rows if row.own), "")
    return Builder(tuple(row.machine for row in rows), own, rows[0].cores, rows[0].toolchain)
