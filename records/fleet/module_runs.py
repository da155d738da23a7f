"""Module runs: the end-to-end timings of a job's compiled models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.lease import ModuleKind
from core.measurement import Footprint, Outcome
from records.jobs import jobs
from records.jobs.trials import TrialState
from records.storage import blobs
from records.storage.statements import insert_missing
from records.storage.tables import JobRow, LeaseRow, ModuleRunRow, WorkerRow


@dataclass(frozen=True)
class StoredModuleRun:
    """An end-to-end timing of a job's compiled model, the blob `artifact_sha`, or of the user's own model.

    `lease_id` is the lease that holds or held it. `attempts` counts the devices that were lost while they
    held it. `onnxruntime` is the version of ONNX Runtime that times the user's model. `speed` is the speed
    of the device during the timing, as a share of its fastest speed. It is None if unknown.
    """

    id: int
    job_id: str
    kind: ModuleKind
    artifact_sha: str
    state: TrialState
    attempts: int
    lease_id: str | None
    outcome: Outcome | None
    run_s: tuple[float, ...]
    error: str
    onnxruntime: str = ""
    footprint: Footprint | None = None
    speed: float | None = None

    @property
    def failed(self) -> bool:
        return self.outcome not in (None, Outcome.OK)


def add(session: Session, job_id: str, kind: ModuleKind, artifact_sha: str, now: float) -> int:
    """Add a module run to a job unless it has the same one; return the id.

    The caller has locked the job, and it isn't finished. Raises BlobNotFound, JobNotFound.
    """
    jobs.get(session, job_id)
    if blobs.size(session, artifact_sha) is None:
        raise blobs.BlobNotFound(f"there is no blob {artifact_sha!r}")
    key = {"job_id": job_id, "kind": kind, "artifact_sha": artifact_sha}
    row = key | {"state": "pending", "attempts": 0, "error": "", "created_at": now}
    insert_missing(session, ModuleRunRow, row, key=list(key))
    return session.scalars(select(ModuleRunRow.id).filter_by(**key)).one()


def of_job(session: Session, job_id: str) -> list[StoredModuleRun]:
    """Return a job's module runs, oldest first."""
    runs = select(ModuleRunRow).where(ModuleRunRow.job_id == job_id).order_by(ModuleRunRow.id)
    return [module_run_of(row) for row in session.scalars(runs)]


def has_open(session: Session, device_class: str) -> bool:
    """Return whether a module run for a device class isn't done."""
    runs = select(ModuleRunRow.id).join(JobRow, JobRow.id == ModuleRunRow.job_id)
    runs = runs.where(JobRow.device_class == device_class, ModuleRunRow.state.in_(("pending", "leased")))
    return session.scalar(runs.limit(1)) is not None


def published_before(session: Session, job_ids: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the repeats of the artifact that was published before a job, by job. Omit jobs without one."""
    timed = select(ModuleRunRow.job_id, ModuleRunRow.run_s).where(
        ModuleRunRow.job_id.in_(job_ids), ModuleRunRow.kind == "published", ModuleRunRow.outcome == Outcome.OK
    )
    return {job_id: tuple(run_s) for job_id, run_s in session.execute(timed)}


def time_again(session: Session, run_ids: Sequence[int]) -> None:
    """Make finished module runs pending again, to be timed together. The caller has locked their job."""
    done = update(ModuleRunRow).where(ModuleRunRow.id.in_(run_ids), ModuleRunRow.state == "done")
    nothing = dict.fromkeys(("lease_id", "outcome", "run_s", "footprint", "speed"))
    session.execute(done.values(state="pending", error="", **nothing))


def leased_job(
    session: Session, lease_id: str, session_id: str, run_id: int, now: float, token_id: str | None
) -> str | None:
    """Lock a lease, and return the job of the inference in it; None if the session doesn't hold the lease.

    With `token_id`, the lease's worker must belong to this token.
    """
    live = (LeaseRow.closed_at.is_(None), LeaseRow.expires_at > now)
    own = (LeaseRow.id == lease_id, LeaseRow.session_id == session_id, *live)
    held = select(LeaseRow.job_id).join(ModuleRunRow, ModuleRunRow.lease_id == LeaseRow.id)
    held = held.where(*own, ModuleRunRow.id == run_id, ModuleRunRow.kind == "inference")
    if token_id is not None:
        worker = select(WorkerRow.id).where(
            WorkerRow.id == LeaseRow.worker_id, WorkerRow.token_id == token_id
        )
        held = held.where(worker.exists())
    return session.scalar(held.with_for_update(of=LeaseRow))


def worker_of(session: Session, run: StoredModuleRun) -> str:
    """Return the worker that timed a module run; "" if its lease was deleted."""
    return session.scalar(select(LeaseRow.worker_id).where(LeaseRow.id == run.lease_id)) or ""


def module_run_of(row: ModuleRunRow) -> StoredModuleRun:
    return StoredModuleRun(
        id=row.id,
        job_id=row.job_id,
        kind=cast("ModuleKind", row.kind),
        artifact_sha=row.artifact_sha,
        state=cast("TrialState", row.state),
        attempts=row.attempts,
        lease_id=row.lease_id,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        run_s=tuple(row.run_s or ()),
        error=row.error,
        onnxruntime=row.onnxruntime,
        footprint=None if row.footprint is None else Footprint(**row.footprint),
        speed=row.speed,
    )
