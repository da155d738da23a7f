"""What is known of one task when a round is planned: from earlier jobs and from this one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from core.measurement import Outcome
from records.jobs.tasks import Task
from records.jobs.trials import Trial
from records.schedules.schedules import Record
from scheduler.planning.spaces import Space
from search.allocate import TaskProgress
from search.programs.program import Program
from search.remeasurement import MeasuredProgram, select_for_remeasurement


@dataclass(frozen=True)
class Finished:
    """A trace and the median seconds of all its measurements, inf where it failed. `data` is what is stored
    of its program, `program` None where that is not of our space. This job has measured it again `repeat`
    times."""

    trace: str
    data: Mapping[str, Any] | None
    program: Program | None
    seconds: float
    repeat: int = 0


@dataclass(frozen=True)
class TaskHistory:
    """`finished` has every trace once; `open` are the programs that are being measured, `waiting` the traces
    of them all. `latencies` has every finished measurement, oldest first."""

    finished: tuple[Finished, ...]
    open: frozenset[Program]
    waiting: tuple[str, ...]
    latencies: tuple[float, ...]

    @property
    def measured(self) -> list[tuple[Program, float]]:
        """Our programs with their seconds."""
        return [(one.program, one.seconds) for one in self.finished if one.program is not None]

    def has(self, trace: str) -> bool:
        return trace in self.waiting or any(one.trace == trace for one in self.finished)

    def issued(self, trace: str, program: Program | None) -> TaskHistory:
        programs = self.open if program is None else self.open | {program}
        return replace(self, open=programs, waiting=(*self.waiting, trace))

    def contenders(self, count: int) -> list[Finished]:
        """Those to measure again."""
        idle = [one for one in self.finished if one.trace not in self.waiting]
        timed = [MeasuredProgram(number, one.seconds, one.repeat + 1) for number, one in enumerate(idle)]
        return [idle[number] for number in select_for_remeasurement(timed, count)]

    @property
    def num_issued(self) -> int:
        """Measurements, finished or not."""
        return len(self.latencies) + len(self.waiting)

    def progress(self, task: Task, space: Space) -> TaskProgress:
        best = tuple(accumulate(self.latencies, min))
        return TaskProgress(task.weight, task.flops, best, self.num_issued, exhausted=False, tag=space.tag)


def gather(space: Space, records: Sequence[Record], trials: Sequence[Trial]) -> TaskHistory:
    """`records` are of the workload on the device class, `trials` this job's own, oldest first."""
    done = [trial for trial in trials if trial.state == "done"]
    own = {trial.trace for trial in done}
    earlier = sorted((r for r in records if r.trace not in own), key=lambda r: (r.created_at, r.trace))
    waiting = [trial for trial in trials if trial.state != "done"]
    found = {record.trace: _recorded(space, record) for record in earlier}
    for trial in done:
        found[trial.trace] = _tried(space, trial, found.get(trial.trace))
    traces = [record.trace for record in earlier] + [trial.trace for trial in done]
    open_programs = [space.program(trial.trace, trial.program) for trial in waiting]
    return TaskHistory(
        finished=tuple(found.values()),
        open=frozenset(program for program in open_programs if program is not None),
        waiting=tuple(trial.trace for trial in waiting),
        latencies=tuple(found[trace].seconds for trace in traces),
    )


def _recorded(space: Space, record: Record) -> Finished:
    program = space.program(record.trace, record.program)
    return Finished(record.trace, record.program, program, _seconds(record.outcome, record.latency_s))


def _tried(space: Space, trial: Trial, before: Finished | None) -> Finished:
    seconds = _seconds(trial.outcome, trial.latency_s)
    if before is not None and math.isinf(seconds) and trial.outcome is not Outcome.WRONG_RESULT:
        # It ran before: this time something else went wrong.
        seconds = before.seconds
    program = space.program(trial.trace, trial.program)
    return Finished(trial.trace, trial.program, program, seconds, trial.repeat)


def _seconds(outcome: Outcome | None, latency_s: float | None) -> float:
    return latency_s if outcome is Outcome.OK and latency_s is not None else math.inf
