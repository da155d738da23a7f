"""A job's first step: a device to tune on, the model as tasks, and its untuned build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from compiler.importing.model import ExtractedTask
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from compiler.workload import from_json
from core.device import Device
from core.job import JobState
from records.fleet import devices
from records.jobs import jobs, tasks
from records.jobs.jobs import Job
from records.jobs.tasks import TaskSpec
from records.storage import blobs
from scheduler.context import Context
from scheduler.planning import budget
from scheduler.planning.spaces import tag_of
from scheduler.steps import attempts, waiting
from scheduler.steps.artifacts import untuned_artifact
from search.dag import Dag

OPEN = {JobState.QUEUED, JobState.IMPORTING}


def run(context: Context, job: Job) -> None:
    """Import the model and keep its untuned build; without a device of the target, wait for one.

    Raises ModelError, ArtifactError and PermanentError.
    """
    device = _begin(context, job)
    if device is None:
        return
    imported, library = context.models.untuned(context.database, job.request, device)
    subgraphs = [_Subgraph.read(task) for task in imported.tasks]
    artifact = untuned_artifact(job, device, imported, library, context.now())
    with context.database.begin() as session:
        sha = blobs.put(session, artifact)
        _store(session, job, subgraphs, context.now())
        jobs.set_artifacts(session, job.id, untuned_sha=sha)


def _begin(context: Context, job: Job) -> Device | None:
    """The device class to tune for, None when there is none yet or it is too early to try again."""
    now = context.now()
    with context.database.begin() as session:
        device = _device(session, job)
        if device is None:
            waiting.note_no_device(session, job, now)
            return None
        jobs.set_device_class(session, job.id, device.key)
        jobs.advance(session, job.id, {JobState.QUEUED}, JobState.IMPORTING, now)
        is_due = attempts.begin(session, job, "importing the model", now, context.settings.max_failures)
        return device if is_due else None


def _device(session: Session, job: Job) -> Device | None:
    if job.device_class is not None:
        return devices.get_class(session, job.device_class)
    return devices.resolve_class(session, job.request.target)


@dataclass(frozen=True)
class _Subgraph:
    """A task of the model as the search sees it: `dag` is None, and `reason` says why, where it can't."""

    task: ExtractedTask
    dag: Dag | None
    reason: str

    @classmethod
    def read(cls, task: ExtractedTask) -> _Subgraph:
        try:
            return cls(task, read_dag(from_json(task.module_json)), "")
        except UnsupportedSubgraph as error:
            return cls(task, None, str(error) or "the search has no form for it")

    def store(self, session: Session) -> None:
        tag = tag_of(self.dag) if self.dag is not None else None
        name, module_json = self.task.workload_hash, self.task.module_json
        tasks.put_workload(session, name, module_json, tag, hashed_here=True)

    def spec(self, job: Job) -> TaskSpec:
        return TaskSpec(
            job_id=job.id,
            workload_hash=self.task.workload_hash,
            name=self.task.name,
            weight=self.task.weight,
            flops=self.dag.flops if self.dag is not None else 0.0,
            covered=self.dag is not None,
            reason=self.reason,
            constants=self.task.constants,
        )


def _store(session: Session, job: Job, subgraphs: Sequence[_Subgraph], now: float) -> None:
    # In one order, so that two jobs with the same workloads never wait for each other.
    for subgraph in sorted(subgraphs, key=lambda subgraph: subgraph.task.workload_hash):
        subgraph.store(session)
    tasks.add_tasks(session, job.id, [subgraph.spec(job) for subgraph in subgraphs])
    to, message = _next(session, job, subgraphs)
    jobs.advance(session, job.id, OPEN, to, now, message=message)


def _next(session: Session, job: Job, subgraphs: Sequence[_Subgraph]) -> tuple[JobState, str]:
    """The state that follows, and what to say of it."""
    if job.request.budget.trials:
        num_covered = sum(subgraph.dag is not None for subgraph in subgraphs)
        return JobState.TUNING, f"searching {num_covered} of {len(subgraphs)} subgraphs"
    if num_unknown := len(budget.unknown(session, job.id)):
        return JobState.TUNING, f"trying the best guess for {num_unknown} of {len(subgraphs)} subgraphs"
    return JobState.PUBLISHING, "compiling the model with the schedules known"
