"""Which schedules go into the published model when some of them break it: only those to blame are left out.

A model is put together with the best schedule of every subgraph. When it can't be compiled, crashes, hangs
or computes something else than the untuned one, it is put together again with fewer: those known to work and
half of those that may be to blame, until one is left (delta debugging). That one gives way to the next best
of its subgraph, then to the fallback schedule; the others stay. A schedule that can't be compiled alone is
found without that.

Every attempt is an event of the job, so a scheduler that is killed goes on where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlalchemy.orm import Session

from compiler.packaging.artifact import REFERENCE_FAILED
from core.measurement import Outcome
from records.fleet.module_runs import StoredModuleRun
from records.jobs import events
from records.schedules.schedules import Record
from records.storage.statements import digest

# The first with everything, five to find one of 32 schedules, and one with all the others.
MAX_ATTEMPTS = 7
# Of a subgraph so many schedules may fail in whole models before it gets the fallback schedule.
MAX_FAILURES = 2
# Ends of a module run that say nothing about schedules.
INCONCLUSIVE = frozenset({Outcome.DEVICE_LOST, Outcome.UNKNOWN})
# Kinds of events.
ASSEMBLED, REFUSED = "assembled", "refused"

# A workload's hash and the digest of a trace.
Schedule: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Attempt:
    """The model put together with some schedules, and how it failed: empty where it works.

    `run` is its timing on a device; None when it didn't compile.
    """

    schedules: frozenset[Schedule]
    failure: str
    run: StoredModuleRun | None = None


@dataclass(frozen=True)
class History:
    """A job's attempts that have ended, oldest first, and why schedules were `refused`: they don't compile.

    `stopped`: the last one's end says nothing about schedules. `uncompared` says why outputs can't be
    compared with the untuned model's, which failed beside a tuned one: that counts as no attempt.
    """

    attempts: tuple[Attempt, ...] = ()
    refused: Mapping[Schedule, str] = field(default_factory=dict)
    stopped: bool = False
    uncompared: str = ""


@dataclass(frozen=True)
class Plan:
    """The records to put the next model together with, by workload. `reasons` are those of workloads that get
    something else than their best record."""

    chosen: Mapping[str, Record]
    reasons: Mapping[str, str]

    @property
    def schedules(self) -> frozenset[Schedule]:
        return frozenset(map(schedule_of, self.chosen.values()))


def schedule_of(record: Record) -> Schedule:
    return record.workload_hash, digest(record.trace)


def note_timed(
    session: Session, job_id: str, plan: Plan, artifact_sha: str, compared: bool, now: float
) -> None:
    """Note a model that is about to be timed, and whether it is to be `compared` with the untuned one."""
    _note_attempt(session, job_id, plan, {"artifact_sha": artifact_sha, "compared": compared}, now)


def note_failure(session: Session, job_id: str, plan: Plan, failure: str, now: float) -> None:
    """Note a model that doesn't compile, and why."""
    _note_attempt(session, job_id, plan, {"failure": failure}, now)


def _note_attempt(session: Session, job_id: str, plan: Plan, about: Mapping[str, object], now: float) -> None:
    data = {"schedules": dict(sorted(plan.schedules)), **about}
    events.append(session, job_id, ASSEMBLED, data, now)


def note_refused(session: Session, job_id: str, schedule: Schedule, problem: str, now: float) -> None:
    """Note that a schedule can't be compiled."""
    workload, trace_sha = schedule
    data = {"workload": workload, "trace_sha": trace_sha, "problem": problem}
    events.append(session, job_id, REFUSED, data, now)


def read(session: Session, job_id: str, runs: Sequence[StoredModuleRun]) -> History:
    """Of the job whose module runs these are."""
    timed = {run.artifact_sha: run for run in runs if run.kind == "tuned"}
    untuned_fails = any(run.kind == "untuned" and run.failed for run in runs)
    attempts: list[Attempt] = []
    refused: dict[Schedule, str] = {}
    uncompared = ""
    for event in events.since(session, job_id, 0):
        data = event.data
        if event.kind == REFUSED:
            refused[data["workload"], data["trace_sha"]] = data["problem"]
        elif event.kind == ASSEMBLED and "failure" in data:
            attempts.append(Attempt(frozenset(data["schedules"].items()), data["failure"]))
        elif event.kind == ASSEMBLED and (run := timed.get(data["artifact_sha"])) and run.state == "done":
            if run.error.startswith(REFERENCE_FAILED):
                uncompared = why(run)
            # What went down with the untuned model beside it says nothing about schedules.
            elif not (run.failed and untuned_fails and data["compared"]):
                attempts.append(Attempt(frozenset(data["schedules"].items()), why(run), run))
    last = attempts[-1].run if attempts else None
    stopped = last is not None and last.outcome in INCONCLUSIVE
    return History(tuple(attempts), refused, stopped, uncompared)


def why(run: StoredModuleRun) -> str:
    """How a module run failed, in a line; empty when it didn't."""
    if run.outcome is Outcome.OK:
        return ""
    lines = run.error.strip().splitlines()
    return f"{run.outcome}: {lines[-1]}" if lines else str(run.outcome)


def next_plan(records: Sequence[Record], history: History) -> Plan | None:
    """What to put together next; None when there is nothing more to find out, or no attempt left to do so.

    `records` are those that went well, of each workload fastest first.
    """
    left = MAX_ATTEMPTS - len(history.attempts)
    works = [attempt.schedules for attempt in history.attempts if not attempt.failure]
    good = frozenset[Schedule]().union(*works)
    failures = [(attempt.schedules - good, attempt) for attempt in history.attempts if attempt.failure]
    guilty = {one: failed.failure for suspects, failed in failures for one in suspects if len(suspects) == 1}
    wanted = _wanted(records, guilty, history.refused, lambda one: left > 1 or one in good)
    if left < 1 or history.stopped or wanted.schedules in works:
        return None
    explained = guilty.keys() | history.refused.keys()
    unexplained = [failure for failure in failures if not failure[1].schedules & explained]
    if not unexplained:
        return wanted
    suspects, failed = min(unexplained, key=lambda failure: len(failure[0]))
    # The last attempt leaves all suspects out, if that leaves anything that isn't known to work already.
    tried = wanted.schedules - suspects
    if left > 1 or tried <= good:
        tried = wanted.schedules & good.union(sorted(suspects)[: len(suspects) // 2])
    if tried <= good:
        return None  # of what fails together, all has worked apart: no schedule is to blame
    return _only(wanted, tried, f"one of {len(suspects)} with which the model fails: {failed.failure}")


def _wanted(
    records: Sequence[Record],
    guilty: Mapping[Schedule, str],
    refused: Mapping[Schedule, str],
    may_replace: Callable[[Schedule], bool],
) -> Plan:
    """The best record of each workload that is neither guilty nor refused, if it `may_replace` one that
    is."""
    chosen: dict[str, Record] = {}
    reasons: dict[str, str] = {}
    failed: Counter[str] = Counter()
    for record in records:
        workload, schedule = record.workload_hash, schedule_of(record)
        if workload in chosen or failed[workload] >= MAX_FAILURES:
            continue
        if schedule in guilty or schedule in refused:
            failed[workload] += schedule in guilty
            reasons.setdefault(workload, guilty.get(schedule) or refused[schedule])
        elif workload not in reasons or may_replace(schedule):
            chosen[workload] = record
    return Plan(chosen, reasons)


def _only(plan: Plan, schedules: frozenset[Schedule], reason: str) -> Plan:
    """The part of a plan that has these schedules."""
    chosen = {name: record for name, record in plan.chosen.items() if schedule_of(record) in schedules}
    left_out = dict.fromkeys(plan.chosen.keys() - chosen.keys(), reason)
    return Plan(chosen, {**left_out, **plan.reasons})
