"""The trials of one round: the allocator picks tasks, the search proposes programs, TVM lowers them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy.orm import Session

from compiler import fallback
from compiler.lowering.trace import LoweringError, lower
from compiler.workload import from_json
from core.device import Device
from core.model_latency import base_workload
from records.jobs import tasks
from records.jobs.tasks import Task
from records.jobs.trials import FALLBACK, NewTrial
from scheduler.planning.job_snapshot import JobSnapshot
from scheduler.planning.task_history import TaskHistory
from scheduler.spaces import SearchSpace
from search.allocate import TaskProgress, next_tasks
from search.cost.model import CostModel
from search.policy import Proposal, propose
from search.programs.program import Program
from search.remeasurement import remeasurement_count

# How often to ask the search for replacements of programs that TVM can't lower or whose traces are known.
MAX_PROPOSALS_PER_TASK = 3

log = logging.getLogger(__name__)


@dataclass
class TaskRound:
    """The search of one task during a round. `history` and `progress` include the trials that this round has
    already allocated to the task. `initial_programs` are programs of similar workloads.
    """

    task: Task
    space: SearchSpace
    history: TaskHistory
    progress: TaskProgress
    initial_programs: Sequence[Program] = ()

    def remeasure(self, count: int) -> list[NewTrial]:
        """Return up to `count` trials that measure possibly fastest traces again."""
        chosen = self.history.to_remeasure(count)
        for one in chosen:
            self.history = self.history.issue(one.trace, one.program)
        return [
            NewTrial(
                self.task.id,
                self.task.workload_hash,
                None if one.program_json is None else dict(one.program_json),
                one.trace,
                predicted_s=one.seconds,
                repeat=one.repeat + 1,
            )
            for one in chosen
        ]

    def explore(self, model: CostModel, rng: np.random.Generator, count: int) -> list[NewTrial]:
        """Return up to `count` trials of new programs. If there are fewer, mark the task as exhausted."""
        found: list[NewTrial] = []
        for _ in range(MAX_PROPOSALS_PER_TASK):
            missing = count - len(found)
            if not missing:
                break
            try:
                proposals = propose(
                    self.space.search_task,
                    model,
                    self.history.measured_programs,
                    missing,
                    rng,
                    self.history.open_programs | self.space.rejected,
                    initial_programs=self.initial_programs,
                    known=self.space.known,
                )
            except Exception:
                # An error in one subgraph's search must not stop the others.
                log.exception("%s: the search failed", self.task.name)
                break
            found += [trial for trial in map(self._lower, proposals) if trial is not None]
            if len(proposals) < missing:
                break
        is_exhausted = len(found) < count
        self.progress = replace(self.progress, issued=self.history.num_issued, exhausted=is_exhausted)
        return found

    def _lower(self, proposal: Proposal) -> NewTrial | None:
        """Return the trial of a program; None if TVM can't lower it or its trace was issued before."""
        program = proposal.program
        try:
            trace = lower(self.space.module, program, self.space.search_task.device)
        except LoweringError as error:
            log.info("%s: a program was refused: %s", self.task.name, error)
            trace = None
        if trace is None or self.history.has(trace):
            self.space.rejected.add(program)
            return None
        self.history = self.history.issue(trace, program)
        return NewTrial(
            self.task.id,
            self.task.workload_hash,
            program.to_json(),
            trace,
            proposal.predicted_s,
            estimated_s=proposal.estimated_s,
        )


def fallback_trials(session: Session, device: Device, listed: Sequence[Task]) -> list[NewTrial]:
    """Return a trial of each task's fallback schedule, to verify and time it. GPUs have none, because TVM's
    own rules schedule untuned subgraphs there.
    """
    if device.gpu is not None:
        return []
    texts = tasks.workloads(session, {task.workload_hash for task in listed})
    return [
        NewTrial(
            task.id,
            task.workload_hash,
            FALLBACK,
            fallback.trace(from_json(texts[task.workload_hash])),
            predicted_s=0.0,
        )
        for task in listed
    ]


def task_rounds(
    snapshot: JobSnapshot,
    spaces: Mapping[str, SearchSpace],
    initial_programs: Mapping[str, Sequence[Program]],
    weights: Mapping[str, float],
    *,
    stop_early: bool,
) -> list[TaskRound]:
    """Return the rounds of the tasks that have a space.

    `spaces`, `initial_programs` and `weights` have workload hashes as keys. With `stop_early`, stalled tasks
    count as exhausted.
    """
    found = []
    for task in snapshot.tasks:
        name = task.workload_hash
        if name in spaces:
            space = spaces[name]
            history = TaskHistory.gather(space, snapshot.records.get(name, ()), snapshot.trials[task.id])
            progress = history.progress(task, space, weights[name])
            if stop_early and progress.has_stalled:
                progress = replace(progress, exhausted=True)
            found.append(TaskRound(task, space, history, progress, initial_programs.get(name, ())))
    for one in found:
        base = base_workload(one.task)
        others = [other for other in found if base_workload(other.task) == base and other is not one]
        best_alternative_s = min((other.progress.best_s for other in others), default=math.inf)
        one.progress = replace(one.progress, best_alternative_s=best_alternative_s)
    return found


def plan_batch(
    rounds: Sequence[TaskRound],
    model: CostModel,
    rng: np.random.Generator,
    trials: int,
    trials_per_pick: int,
    epsilon: float,
    *,
    is_last: bool,
) -> Iterator[NewTrial]:
    """Yield up to `trials` trials, task by task, at most `trials_per_pick` for each pick of the allocator,
    which picks a random task with probability `epsilon`. There are fewer if the spaces are exhausted. Some
    trials remeasure possibly fastest traces, more of them in the last batch, and every fastest trace that was
    disturbed.
    """
    planned = 0
    while planned < trials:
        progress = [one.progress for one in rounds]
        shares: Counter[int] = Counter()
        for index, count in next_tasks(progress, trials - planned, trials_per_pick, rng, epsilon):
            shares[index] += count
        if not shares:
            break
        for index, share in shares.items():
            count = remeasurement_count(share, rng, is_last=is_last)
            repeats = rounds[index].remeasure(max(count, rounds[index].history.doubtful is not None))
            found = repeats + rounds[index].explore(model, rng, share - len(repeats))
            planned += len(found)
            yield from found
