"""The measurements of one task by earlier jobs and by this job."""

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
from scheduler.spaces import SearchSpace
from search.allocate import TaskProgress
from search.programs.program import Program
from search.remeasurement import MAX_MEASUREMENTS, MeasuredProgram, select_for_remeasurement


@dataclass(frozen=True)
class MeasuredTrace:
    """A trace and the median seconds of all its measurements, inf if it failed. `program_json` is the stored
    program; `program` is None if the stored program isn't in the space. The job has remeasured the trace
    `repeat` times. `disturbed`: its repeats differ so much that the device must have been disturbed. `speed`
    is the speed of the device in the last measurement, as a share of its fastest speed.
    """

    trace: str
    program_json: Mapping[str, Any] | None
    program: Program | None
    seconds: float
    repeat: int = 0
    disturbed: bool = False
    speed: float = 1.0

    @property
    def is_doubtful(self) -> bool:
        """Whether it has to be measured again before it counts as the best."""
        return self.disturbed and self.repeat + 1 < MAX_MEASUREMENTS


@dataclass(frozen=True)
class TaskHistory:
    """The traces of a task.

    measured       every measured trace, by its text
    open_traces    the traces that wait for a device or are being measured
    open_programs  their programs, where these are programs of the space
    latencies      seconds of every measurement, oldest first; inf for a failure
    """

    measured: Mapping[str, MeasuredTrace]
    open_traces: tuple[str, ...]
    open_programs: frozenset[Program]
    latencies: tuple[float, ...]

    @classmethod
    def gather(cls, space: SearchSpace, records: Sequence[Record], trials: Sequence[Trial]) -> TaskHistory:
        """Join the records of the workload on the device class and this job's own trials, oldest first."""
        done = [trial for trial in trials if trial.state == "done"]
        own = {trial.trace for trial in done}
        earlier = sorted((r for r in records if r.trace not in own), key=lambda r: (r.created_at, r.trace))
        found: dict[str, MeasuredTrace] = {}
        for record in earlier:
            program = space.program(record.trace, record.program)
            seconds = _seconds(record.outcome, record.latency_s)
            found[record.trace] = MeasuredTrace(
                record.trace, record.program, program, seconds, disturbed=record.is_disturbed
            )
        for trial in done:
            seconds = _seconds(trial.outcome, trial.latency_s)
            disturbed, before = trial.is_disturbed, found.get(trial.trace)
            if before is not None and math.isinf(seconds) and trial.outcome is not Outcome.WRONG_RESULT:
                # It ran before, so only a wrong result invalidates the earlier measurements.
                seconds, disturbed = before.seconds, before.disturbed
            program = space.program(trial.trace, trial.program)
            found[trial.trace] = MeasuredTrace(
                trial.trace, trial.program, program, seconds, trial.repeat, disturbed, trial.speed or 1.0
            )
        traces = [record.trace for record in earlier] + [trial.trace for trial in done]
        waiting = [trial for trial in trials if trial.state != "done"]
        programs = [space.program(trial.trace, trial.program) for trial in waiting]
        return cls(
            measured=found,
            open_traces=tuple(trial.trace for trial in waiting),
            open_programs=frozenset(program for program in programs if program is not None),
            latencies=tuple(found[trace].seconds for trace in traces),
        )

    @property
    def measured_programs(self) -> list[tuple[Program, float]]:
        """The space's measured programs and their seconds."""
        return [(one.program, one.seconds) for one in self.measured.values() if one.program is not None]

    @property
    def num_issued(self) -> int:
        """The number of measurements, finished or open."""
        return len(self.latencies) + len(self.open_traces)

    def has(self, trace: str) -> bool:
        return trace in self.open_traces or trace in self.measured

    def issue(self, trace: str, program: Program | None) -> TaskHistory:
        """Return the history with one more open trace."""
        programs = self.open_programs if program is None else self.open_programs | {program}
        return replace(self, open_programs=programs, open_traces=(*self.open_traces, trace))

    @property
    def doubtful(self) -> MeasuredTrace | None:
        """The fastest trace, if it has to be measured again and isn't being measured."""
        fastest = min(self.measured.values(), key=lambda one: one.seconds, default=None)
        is_open = fastest is not None and fastest.trace in self.open_traces
        return fastest if fastest is not None and fastest.is_doubtful and not is_open else None

    def to_remeasure(self, count: int) -> list[MeasuredTrace]:
        """Return up to `count` traces that may be the fastest but have too few measurements to tell. A
        doubtful one is first.
        """
        first = [self.doubtful] if count and self.doubtful is not None else []
        open_traces = set(self.open_traces)
        idle = [one for one in self.measured.values() if one.trace not in open_traces and one not in first]
        timed = [
            MeasuredProgram(number, one.seconds, one.repeat + 1, one.speed) for number, one in enumerate(idle)
        ]
        return first + [idle[number] for number in select_for_remeasurement(timed, count - len(first))]

    def progress(self, task: Task, space: SearchSpace, weight: float) -> TaskProgress:
        best = tuple(accumulate(self.latencies, min))
        return TaskProgress(weight, task.flops, best, self.num_issued, exhausted=False, tag=space.tag)


def _seconds(outcome: Outcome | None, latency_s: float | None) -> float:
    return latency_s if outcome is Outcome.OK and latency_s is not None else math.inf
