"""Workloads, and the tasks that a job makes of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session


class WorkloadNotFound(KeyError):
    """No workload has this hash."""


@dataclass(frozen=True)
class TaskSpec:
    """A task to add. `constants` are the indices of the workload's arguments that are weights of the model;
    `reason` says why a task that is not `covered` keeps its fallback schedule."""

    job_id: str
    workload_hash: str
    name: str
    weight: int
    flops: float
    covered: bool
    reason: str
    constants: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """A stored task. `trials` are its job's finished ones; `best_s` is the best latency in seconds known for the
    workload on the job's device class, whichever job measured it."""

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


def put_workload(session: Session, workload_hash: str, module_json: str) -> None:
    """Store a workload unless it is already there."""
    raise NotImplementedError


def workload(session: Session, workload_hash: str) -> str:
    """The workload's module as JSON. Raises WorkloadNotFound."""
    raise NotImplementedError


def workloads(session: Session, hashes: Collection[str]) -> dict[str, str]:
    """The modules as JSON of those of the `hashes` that are stored."""
    raise NotImplementedError


def add_tasks(session: Session, job_id: str, specs: Sequence[TaskSpec]) -> None:
    """Add the tasks whose workload is not yet a task of the job. Raises WorkloadNotFound."""
    raise NotImplementedError


def for_job(session: Session, job_id: str) -> list[Task]:
    """The job's tasks in the order they were added."""
    raise NotImplementedError
