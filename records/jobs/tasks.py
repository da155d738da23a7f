"""Workloads, and the tasks of jobs: a task is a workload within a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from core.model_latency import network_s
from records.storage.database import NotFound
from records.storage.ids import only_id
from records.storage.statements import insert_missing
from records.storage.tables import JobRow, RecordRow, TaskRow, TrialRow, WorkloadRow


class WorkloadNotFound(NotFound):
    """No workload has this hash."""


@dataclass(frozen=True)
class TaskSpec:
    """A task to add to a job.

    `constants` are the indices of the workload's arguments that are weights of the model. A task that is not
    `covered` by the search keeps its fallback schedule, for this `reason`. If it may replace another
    workload, `variant_of`, `variant` names the kind of variant. `signature` has the types and shapes of its
    operands, and `num_bytes` is their total size. `layer` is the model's node at which it first occurs.
    """

    job_id: str
    workload_hash: str
    name: str
    weight: int
    flops: float
    covered: bool
    reason: str
    constants: tuple[int, ...]
    variant: str = ""
    variant_of: str = ""
    signature: str = ""
    num_bytes: float = 0.0
    layer: str = ""


@dataclass(frozen=True)
class Task:
    """A stored task; clients see it as `tunefarm.client.values.Task`.

    `trials` counts the job's trials that are done. `best_s` is the best latency of the workload on the job's
    device class that any job has measured, in seconds.
    """

    id: int
    job_id: str
    workload_hash: str
    name: str
    weight: int
    flops: float
    covered: bool
    reason: str
    trials: int
    best_s: float | None
    constants: tuple[int, ...]
    variant: str = ""
    variant_of: str = ""
    signature: str = ""
    num_bytes: float = 0.0
    layer: str = ""


class KnownWorkload(NamedTuple):
    """A workload, as the newest task that has it describes it."""

    hash: str
    name: str
    signature: str
    flops: float


class _MeasuredTask(NamedTuple):
    """The part of a task that says how much of its model's latency it takes."""

    workload_hash: str
    variant_of: str
    weight: int
    covered: bool
    best_s: float | None


def put_workload(
    session: Session,
    workload_hash: str,
    module_json: str,
    tag: str | None = None,
    *,
    hashed_here: bool = False,
) -> None:
    """Store a workload if it is new. Similar workloads have the same `tag`.

    `hashed_here`: this service computed the hash, so the module replaces one that a client stored under that
    hash.
    """
    row = {"hash": workload_hash, "module_json": module_json, "tag": tag}
    if insert_missing(session, WorkloadRow, row, key=["hash"]):
        return
    stored = update(WorkloadRow).where(WorkloadRow.hash == workload_hash)
    if hashed_here:
        session.execute(stored.where(WorkloadRow.module_json != module_json).values(module_json=module_json))
    if tag is not None:
        session.execute(stored.where(WorkloadRow.tag.is_(None)).values(tag=tag))


def full_hash(session: Session, start: str) -> str:
    """Return the only hash of a workload that begins with `start`, or `start` if none does.

    Raises WorkloadNotFound if several do.
    """
    return only_id(session, WorkloadRow.hash, start, WorkloadNotFound)


def workload(session: Session, workload_hash: str) -> str:
    """Return the workload's module as JSON. Raises WorkloadNotFound."""
    module = session.scalar(select(WorkloadRow.module_json).where(WorkloadRow.hash == workload_hash))
    if module is None:
        raise WorkloadNotFound(f"there is no workload {workload_hash!r}")
    return module


def search(session: Session, device_class: str, words: Sequence[str], limit: int) -> list[KnownWorkload]:
    """Return the workloads that were measured on a device class, the newest first.

    Only workloads with all of the words in their name or signature are returned; case doesn't matter.
    """
    measured = select(RecordRow.id).where(
        RecordRow.workload_hash == TaskRow.workload_hash,
        RecordRow.device_class == device_class,
        RecordRow.source == "trial",
        RecordRow.latency_s.is_not(None),
    )
    text = TaskRow.name + " " + TaskRow.signature
    has_words = [text.icontains(word, autoescape=True) for word in words]
    newest = select(func.max(TaskRow.id)).where(*has_words).group_by(TaskRow.workload_hash)
    columns = (TaskRow.workload_hash, TaskRow.name, TaskRow.signature, TaskRow.flops)
    found = select(*columns).where(TaskRow.id.in_(newest), measured.exists()).order_by(TaskRow.id.desc())
    return [KnownWorkload(*row) for row in session.execute(found.limit(limit))]


def workloads(session: Session, hashes: Collection[str]) -> dict[str, str]:
    """Return the modules of stored workloads as JSON, by hash."""
    found = select(WorkloadRow.hash, WorkloadRow.module_json).where(WorkloadRow.hash.in_(hashes))
    return {row.hash: row.module_json for row in session.execute(found)}


def tags(session: Session, device_class: str) -> dict[str, str]:
    """Return the tags of the workloads that were measured on the device class, by hash."""
    worked = select(RecordRow.id).where(
        RecordRow.workload_hash == WorkloadRow.hash,
        RecordRow.device_class == device_class,
        RecordRow.source == "trial",
        RecordRow.latency_s.is_not(None),
    )
    tagged = select(WorkloadRow.hash, WorkloadRow.tag).where(WorkloadRow.tag.is_not(None), worked.exists())
    return {row.hash: str(row.tag) for row in session.execute(tagged)}


def require_workloads(session: Session, hashes: Collection[str]) -> None:
    """Raise WorkloadNotFound unless all workloads are stored."""
    stored = set(session.scalars(select(WorkloadRow.hash).where(WorkloadRow.hash.in_(hashes))))
    for hash_ in hashes:
        if hash_ not in stored:
            raise WorkloadNotFound(f"there is no workload {hash_!r}")


def add_tasks(session: Session, job_id: str, specs: Sequence[TaskSpec]) -> None:
    """Add tasks, except those whose workload is already a task of the job. Raises WorkloadNotFound."""
    require_workloads(session, {spec.workload_hash for spec in specs})
    for spec in specs:
        row = asdict(spec) | {"job_id": job_id, "constants": list(spec.constants)}
        insert_missing(session, TaskRow, row, key=["job_id", "workload_hash"])


# The best measured latency of a task's workload on its job's device class.
_BEST = select(func.min(RecordRow.latency_s)).where(
    RecordRow.workload_hash == TaskRow.workload_hash,
    RecordRow.device_class == JobRow.device_class,
    RecordRow.source == "trial",
)


def for_job(session: Session, job_id: str) -> list[Task]:
    """Return the job's tasks in the order in which they were added."""
    finished = select(func.count()).where(TrialRow.task_id == TaskRow.id, TrialRow.state == "done")
    query = (
        select(
            TaskRow,
            finished.correlate(TaskRow).scalar_subquery(),
            _BEST.correlate(TaskRow, JobRow).scalar_subquery(),
        )
        .join(JobRow, JobRow.id == TaskRow.job_id)
        .where(TaskRow.job_id == job_id)
        .order_by(TaskRow.id)
    )
    return [
        Task(
            id=row.id,
            job_id=row.job_id,
            workload_hash=row.workload_hash,
            name=row.name,
            weight=row.weight,
            flops=row.flops,
            covered=row.covered,
            reason=row.reason,
            trials=trials,
            best_s=best_s,
            constants=tuple(row.constants),
            variant=row.variant,
            variant_of=row.variant_of,
            signature=row.signature,
            num_bytes=row.num_bytes,
            layer=row.layer,
        )
        for row, trials, best_s in session.execute(query)
    ]


def estimates(session: Session, job_ids: Collection[str]) -> dict[str, float]:
    """Return the estimated latencies of jobs in seconds: what their subgraphs take together. Jobs with an
    unmeasured subgraph have none."""
    query = (
        select(
            TaskRow.job_id,
            TaskRow.workload_hash,
            TaskRow.variant_of,
            TaskRow.weight,
            TaskRow.covered,
            _BEST.correlate(TaskRow, JobRow).scalar_subquery(),
        )
        .join(JobRow, JobRow.id == TaskRow.job_id)
        .where(TaskRow.job_id.in_(job_ids))
    )
    found: defaultdict[str, list[_MeasuredTask]] = defaultdict(list)
    for job_id, *task in session.execute(query):
        found[job_id].append(_MeasuredTask(*task))
    known = {job_id: network_s(own) for job_id, own in found.items()}
    return {job_id: secs for job_id, secs in known.items() if secs is not None}


def known_before(session: Session, job_id: str) -> dict[int, float]:
    """Return the best latencies from before the job was created, in seconds, by the tasks' ids."""
    known = _BEST.where(RecordRow.created_at < JobRow.created_at)
    query = (
        select(TaskRow.id, known.correlate(TaskRow, JobRow).scalar_subquery())
        .join(JobRow, JobRow.id == TaskRow.job_id)
        .where(TaskRow.job_id == job_id)
    )
    return {task_id: known_s for task_id, known_s in session.execute(query) if known_s is not None}
