"""Groups of jobs that share trials and are planned together. A single job is a group of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy.orm import Session

from core.job import JobState
from core.model_latency import fastest_tasks, network_s
from records.jobs import jobs, tasks
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from scheduler.errors import PermanentError
from scheduler.planning.objectives import load_objective
from search.objectives import Network, ObjectiveError, slopes


@dataclass(frozen=True)
class Group:
    """The jobs of a group in the order of the request, and the tasks of each by job id."""

    jobs: tuple[Job, ...]
    tasks_of: Mapping[str, Sequence[Task]]

    @classmethod
    def read(cls, session: Session, job: Job) -> Group:
        members = jobs.group(session, job)
        return cls(tuple(members), {one.id: tasks.for_job(session, one.id) for one in members})

    @property
    def tuning(self) -> tuple[Job, ...]:
        """The jobs that take part in rounds. Failed and cancelled jobs don't stop the others."""
        return tuple(job for job in self.jobs if job.state is JobState.TUNING)

    @property
    def planner(self) -> Job | None:
        """The job that runs the rounds for all jobs of the group; None until all models are imported."""
        if any(job.state in (JobState.QUEUED, JobState.IMPORTING) for job in self.jobs):
            return None
        return next(iter(self.tuning), None)

    @property
    def trials_left(self) -> int:
        """The trials that the common budget leaves; negative if untried tasks got more."""
        return self.jobs[0].request.budget.trials - sum(job.trials_issued for job in self.jobs)

    @property
    def started_at(self) -> float | None:
        """When the first of them started."""
        return min((job.started_at for job in self.jobs if job.started_at is not None), default=None)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Each workload once: the task of the first job that has it, which makes the trials for all."""
        found: dict[str, Task] = {}
        for job in self.tuning or self.jobs:
            for task in self.tasks_of[job.id]:
                found.setdefault(task.workload_hash, task)
        return tuple(found.values())

    def latency_s(self, job: Job) -> float | None:
        """Return the estimate of a model's latency; None until each of its covered subgraphs was measured."""
        return network_s(self.tasks_of[job.id])

    def weights(self) -> dict[str, float]:
        """Return the objective's gain for each second that a workload saves, by workload hash. Raises
        PermanentError if the objective can't be used.
        """
        networks = []
        for job in self.tuning:
            known = sum(task.weight * (task.best_s or 0.0) for task in fastest_tasks(self.tasks_of[job.id]))
            required_s = job.request.budget.latency_s or 0.0
            # Before any measurement, all networks count alike.
            networks.append(
                Network(job.request.model_name, known or 1.0, job.request.model_weight, required_s)
            )
        name = self.tuning[0].request.objective
        try:
            found = slopes(load_objective(name), networks)
        except ObjectiveError as error:
            raise PermanentError(f"{name}: {error}") from error
        weights: defaultdict[str, float] = defaultdict(float)
        for job, slope in zip(self.tuning, found, strict=True):
            for task in self.tasks_of[job.id]:
                weights[task.workload_hash] += slope * task.weight
        return dict(weights)
