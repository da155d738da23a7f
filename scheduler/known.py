"""What is known of one task when a round is planned: from earlier jobs and from this one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from records.schedules import Record
from records.tasks import Task
from records.trials import Trial
from scheduler.spaces import Space
from search.allocate import TaskProgress
from search.measurement import Outcome
from search.program import Program


@dataclass(frozen=True)
class Known:
    """`measured` pairs programs with their seconds, inf for a failure; `open` are being measured.

    `latencies` has every finished measurement, oldest first, those without a program of ours included;
    `traces` everything that must not be measured again.
    """

    measured: tuple[tuple[Program, float], ...]
    open: frozenset[Program]
    latencies: tuple[float, ...]
    num_open: int
    traces: frozenset[str]

    def issued(self, program: Program, trace: str) -> Known:
        return replace(self, open=self.open | {program}, traces=self.traces | {trace})

    def progress(self, task: Task, space: Space) -> TaskProgress:
        best = tuple(accumulate(self.latencies, min))
        issued = len(best) + self.num_open
        return TaskProgress(task.weight, task.flops, best, issued, exhausted=False, tag=space.tag)


def gather(space: Space, records: Sequence[Record], trials: Sequence[Trial]) -> Known:
    """`records` are of the workload on the device class, `trials` this job's own, oldest first."""
    own = {trial.trace for trial in trials}
    earlier = sorted((r for r in records if r.trace not in own), key=lambda r: (r.created_at, r.trace))
    done = [trial for trial in trials if trial.state == "done"]
    waiting = [trial for trial in trials if trial.state != "done"]
    finished = [(r.trace, r.program, _seconds(r.outcome, r.latency_s)) for r in earlier]
    finished += [(t.trace, t.program, _seconds(t.outcome, t.latency_s)) for t in done]
    parsed = [(space.program(trace, data), seconds) for trace, data, seconds in finished]
    open_programs = [space.program(trial.trace, trial.program) for trial in waiting]
    return Known(
        measured=tuple((program, seconds) for program, seconds in parsed if program is not None),
        open=frozenset(program for program in open_programs if program is not None),
        latencies=tuple(seconds for _, _, seconds in finished),
        num_open=len(waiting),
        traces=frozenset(own | {r.trace for r in earlier}),
    )


def _seconds(outcome: Outcome | None, latency_s: float | None) -> float:
    return latency_s if outcome is Outcome.OK and latency_s is not None else math.inf
