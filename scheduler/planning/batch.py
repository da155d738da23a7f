"""The trials of one round: tasks picked, programs evolved, lowered to traces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.lowering.trace import LoweringError, lower
from records.jobs.tasks import Task
from records.jobs.trials import NewTrial
from scheduler.learning.training import TrainedModel
from scheduler.planning.job_snapshot import JobSnapshot
from scheduler.planning.spaces import Space
from scheduler.planning.task_history import Finished, TaskHistory, gather
from search.allocate import TaskProgress, next_tasks
from search.cost.model import CostModel
from search.policy import Proposal, propose
from search.programs.program import Program
from search.remeasurement import remeasurement_count

ASKS_PER_TASK = 3

log = logging.getLogger(__name__)


@dataclass
class TaskSearch:
    """A task while its trials of this round are being picked."""

    task: Task
    space: Space
    known: TaskHistory
    progress: TaskProgress
    seeds: Sequence[Program] = ()

    def lowered(self, proposal: Proposal) -> NewTrial | None:
        """The trial, or None when TVM refuses the program or its trace was issued before."""
        try:
            trace = lower(self.space.module, proposal.program, self.space.search.device)
        except LoweringError as error:
            log.info("%s: a program was refused: %s", self.task.name, error)
            trace = None
        if trace is None or self.known.has(trace):
            self.space.spent.add(proposal.program)
            return None
        self.known = self.known.issued(trace, proposal.program)
        data = proposal.program.to_json()
        return NewTrial(self.task.id, self.task.workload_hash, data, trace, proposal.predicted_s)

    def again(self, count: int) -> list[NewTrial]:
        """Up to `count` trials of what may be the fastest, but was not measured often enough to tell."""
        chosen = self.known.contenders(count)
        for one in chosen:
            self.known = self.known.issued(one.trace, one.program)
        return [self._repeated(one) for one in chosen]

    def _repeated(self, one: Finished) -> NewTrial:
        data = None if one.data is None else dict(one.data)
        whose = self.task.id, self.task.workload_hash
        return NewTrial(*whose, data, one.trace, predicted_s=one.seconds, repeat=one.repeat + 1)


def plan(
    subjects: Sequence[TaskSearch],
    lesson: TrainedModel,
    rng: np.random.Generator,
    slots: int,
    per_pick: int,
    *,
    is_last: bool,
) -> list[NewTrial]:
    """Up to `slots` trials, about `per_pick` for each pick of the allocator; fewer when the spaces end. Some
    measure again what may be the fastest, more of the last than of others."""
    batch: list[NewTrial] = []
    while len(batch) < slots:
        picks = Counter(next_tasks([s.progress for s in subjects], slots - len(batch), per_pick))
        if not picks:
            break
        for index, times in picks.items():
            wanted = min(times * per_pick, slots - len(batch))
            again = subjects[index].again(remeasurement_count(wanted, rng, is_last=is_last))
            batch += again + _new_trials(subjects[index], lesson, rng, wanted - len(again))
    return batch


def subjects_of(
    situation: JobSnapshot, spaces: Mapping[str, Space], seeds: Mapping[str, Sequence[Program]]
) -> list[TaskSearch]:
    """The tasks that have a space; `seeds` are by workload hash."""
    subjects = []
    for task in situation.tasks:
        name = task.workload_hash
        if name in spaces:
            known = gather(spaces[name], situation.records.get(name, ()), situation.trials[task.id])
            progress = known.progress(task, spaces[name])
            subjects.append(TaskSearch(task, spaces[name], known, progress, seeds.get(name, ())))
    return subjects


def _new_trials(
    subject: TaskSearch, lesson: TrainedModel, rng: np.random.Generator, wanted: int
) -> list[NewTrial]:
    """Asks the search again, a few times, when what it proposes can't be lowered or is known already.

    A task that gives less than what is wanted is exhausted.
    """
    found: list[NewTrial] = []
    for _ in range(ASKS_PER_TASK):
        missing = wanted - len(found)
        if not missing:
            break
        proposals = _proposals(subject, lesson.model, rng, missing)
        lowered = [subject.lowered(proposal) for proposal in proposals]
        found += [trial for trial in lowered if trial is not None]
        if len(proposals) < missing:
            break
    is_exhausted = len(found) < wanted
    subject.progress = replace(subject.progress, issued=subject.known.num_issued, exhausted=is_exhausted)
    return found


def _proposals(subject: TaskSearch, model: CostModel, rng: np.random.Generator, count: int) -> list[Proposal]:
    exclude = subject.known.open | subject.space.spent
    measured = subject.known.measured
    return propose(subject.space.search, model, measured, count, rng, exclude, seeds=subject.seeds)
