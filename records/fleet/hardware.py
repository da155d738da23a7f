"""Workers that measure on the same cores, or the same GPU, of one machine: they measure in turns."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from core.worker import LOST_AFTER_S, WorkerState
from records.fleet.workers import WorkerSession
from records.storage.tables import LeaseRow, WorkerRow


class HardwareInUse(Exception):
    """Another worker measures on the same cores or GPU now."""


def check_free(session: Session, worker: WorkerSession, now: float) -> None:
    """Raise HardwareInUse if another worker of the machine holds a lease and shares hardware with this one.

    Two servers may lease to both at the same moment. These two leases then disturb each other.
    """
    if not worker.claim.boot_id or not worker.hardware:
        return
    values = {"machine": worker.claim.boot_id, "worker": worker.worker_id, "now": now}
    for other, hardware in session.execute(_select_measuring(), values):
        if not set(worker.hardware).isdisjoint(hardware or ()):
            raise HardwareInUse(f"worker {other} measures on the same hardware")


@cache
def _select_measuring() -> Select[str, list[str] | None]:
    """Select the other workers of a machine that hold a lease, and the hardware that they measure on."""
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > bindparam("now"))
    same_machine = (WorkerRow.boot_id == bindparam("machine"), WorkerRow.id != bindparam("worker"))
    others = select(WorkerRow.id, WorkerRow.hardware).join(LeaseRow, LeaseRow.worker_id == WorkerRow.id)
    return others.where(*same_machine, *live)


def sharing(session: Session, now: float) -> dict[str, list[str]]:
    """Return the connected workers that share hardware with others, and the names of these others."""
    there = (WorkerRow.state != WorkerState.OFFLINE, WorkerRow.last_seen_at > now - LOST_AFTER_S)
    known = select(WorkerRow.id, WorkerRow.boot_id, WorkerRow.hardware).where(
        *there, WorkerRow.boot_id != "", WorkerRow.hardware.is_not(None)
    )
    users = defaultdict(set)
    for worker_id, boot_id, hardware in session.execute(known):
        for part in hardware or ():
            users[boot_id, part].add(worker_id)
    shared: defaultdict[str, set[str]] = defaultdict(set)
    for ids in users.values():
        for worker_id in ids:
            shared[worker_id] |= ids - {worker_id}
    return {worker_id: sorted(others) for worker_id, others in shared.items() if others}
