"""The schedules of the published model: the best of every subgraph, without those that break the model.

The model is assembled with the best schedule of every subgraph or of one of its variants. It may fail to
compile, crash, hang, or compute something else than the untuned model. Then it is assembled again with the
schedules that are known to work and half of the suspects. This goes on until one suspect is left (delta
debugging, Zeller 2002). That schedule gives way to the next best one of its subgraph, then to the fallback
schedule; all others stay. A schedule that can't be compiled alone is found without assembling models.

Every assembly is stored as an event of the job, so the successor of a killed scheduler goes on from there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlalchemy.orm import Session

from compiler.packaging.artifact import REFERENCE_FAILED
from core.measurement import Outcome
from records.fleet.module_runs import StoredModuleRun
from records.jobs import events, trials
from records.jobs.trials import Trial
from records.schedules.schedules import Record
from records.storage.statements import digest

# One assembly with all schedules, five to find one of 32 suspects, and one with all the others.
MAX_ASSEMBLIES = 7
# A subgraph gets the fallback schedule after this many of its schedules broke the model.
MAX_HARMFUL = 2
# Outcomes of a module run that schedules don't cause.
INCONCLUSIVE = frozenset({Outcome.DEVICE_LOST, Outcome.UNKNOWN})
# The kinds of events that store assemblies and failures.
ASSEMBLED, REFUSED, UNSCHEDULABLE = "assembled", "refused", "unschedulable"

# A workload's hash and the digest of a trace.
ScheduleId: TypeAlias = tuple[str, str]


@dataclass(frozen=True)
class Assembly:
    """A model assembled with a selection of schedules. `failure` is empty if it works.

    `run` is its timing on a device, None if it couldn't be compiled.
    """

    schedules: frozenset[ScheduleId]
    failure: str
    run: StoredModuleRun | None = None


@dataclass(frozen=True)
class AssemblyHistory:
    """The assemblies of a job whose outcome is known.

    assemblies       oldest first
    refused          schedules that can't be compiled, and why
    is_inconclusive  whether the outcome of the last assembly says nothing about its schedules
    uncompared       why outputs can't be compared with the untuned model's: that one failed beside a tuned
                     one, which doesn't count as an assembly
    """

    assemblies: tuple[Assembly, ...] = ()
    refused: Mapping[ScheduleId, str] = field(default_factory=dict)
    is_inconclusive: bool = False
    uncompared: str = ""


@dataclass(frozen=True)
class Selection:
    """The records to assemble a model with, by the model's workload. A variant's record has another workload
    than the base workload that it replaces. `reasons` maps workloads to the reasons why they don't get their
    best record.
    """

    chosen: Mapping[str, Record]
    reasons: Mapping[str, str]

    @property
    def schedules(self) -> frozenset[ScheduleId]:
        return frozenset(map(schedule_id, self.chosen.values()))

    @property
    def traces(self) -> dict[str, str]:
        """The chosen traces by the workload that they schedule."""
        return {record.workload_hash: record.trace for record in self.chosen.values()}


def schedule_id(record: Record) -> ScheduleId:
    return record.workload_hash, digest(record.trace)


def store_timed(
    session: Session, job_id: str, selection: Selection, artifact_sha: str, compared: bool, now: float
) -> None:
    """Store an assembly that will be timed, and whether it is `compared` with the untuned model."""
    about = {"artifact_sha": artifact_sha, "compared": compared}
    _store_assembly(session, job_id, selection, about, now)


def store_failure(session: Session, job_id: str, selection: Selection, failure: str, now: float) -> None:
    """Store an assembly that can't be compiled, and why."""
    _store_assembly(session, job_id, selection, {"failure": failure}, now)


def _store_assembly(
    session: Session, job_id: str, selection: Selection, about: Mapping[str, object], now: float
) -> None:
    data = {"schedules": dict(sorted(selection.schedules)), **about}
    events.append(session, job_id, ASSEMBLED, data, now)


def store_refused(session: Session, job_id: str, schedule: ScheduleId, problem: str, now: float) -> None:
    """Store that a schedule can't be compiled, and why."""
    workload, trace_sha = schedule
    data = {"workload": workload, "trace_sha": trace_sha, "problem": problem}
    events.append(session, job_id, REFUSED, data, now)


def store_unschedulable(session: Session, job_id: str, workload: str, problem: str, now: float) -> None:
    """Store that a workload's fallback schedule can't be compiled, and why."""
    events.append(session, job_id, UNSCHEDULABLE, {"workload": workload, "problem": problem}, now)


def read_unschedulable(session: Session, job_id: str) -> dict[str, str]:
    """Return the workloads whose fallback schedule doesn't work, and why: they stay unscheduled."""
    measured = trials.fallbacks(session, job_id).items()
    found = {workload: problem for workload, trial in measured if (problem := failure_of(trial))}
    refused = events.of_kinds(session, job_id, (UNSCHEDULABLE,))
    return found | {event.data["workload"]: event.data["problem"] for event in refused}


def read_history(session: Session, job_id: str, runs: Sequence[StoredModuleRun]) -> AssemblyHistory:
    """Return a job's history of assemblies; `runs` are its module runs."""
    timed = {run.artifact_sha: run for run in runs if run.kind == "tuned"}
    untuned_fails = any(run.kind == "untuned" and run.failed for run in runs)
    assemblies: list[Assembly] = []
    refused: dict[ScheduleId, str] = {}
    uncompared = ""
    for event in events.of_kinds(session, job_id, (ASSEMBLED, REFUSED)):
        data = event.data
        if event.kind == REFUSED:
            refused[data["workload"], data["trace_sha"]] = data["problem"]
        elif event.kind == ASSEMBLED and "failure" in data:
            assemblies.append(Assembly(frozenset(data["schedules"].items()), data["failure"]))
        elif event.kind == ASSEMBLED and (run := timed.get(data["artifact_sha"])) and run.state == "done":
            if run.error.startswith(REFERENCE_FAILED):
                uncompared = failure_of(run)
            # If the untuned model fails too, the failure isn't the schedules'.
            elif not (run.failed and untuned_fails and data["compared"]):
                assemblies.append(Assembly(frozenset(data["schedules"].items()), failure_of(run), run))
    last = assemblies[-1].run if assemblies else None
    is_inconclusive = last is not None and last.outcome in INCONCLUSIVE
    return AssemblyHistory(tuple(assemblies), refused, is_inconclusive, uncompared)


def failure_of(run: StoredModuleRun | Trial) -> str:
    """Describe the failure of a module run or a trial in one line; "" if it succeeded."""
    if run.outcome in (Outcome.OK, None):
        return ""
    lines = run.error.strip().splitlines()
    return f"{run.outcome}: {lines[-1]}" if lines else str(run.outcome)


def next_selection(
    records: Sequence[Record], history: AssemblyHistory, bases: Mapping[str, str]
) -> Selection | None:
    """Return the next selection to try; None if no assembly is left or another would add no information.
    `records` are the successful records. `bases` maps the workloads of tasks to their base workloads.
    """
    left = MAX_ASSEMBLIES - len(history.assemblies)
    works = [assembly.schedules for assembly in history.assemblies if not assembly.failure]
    good = frozenset[ScheduleId]().union(*works)
    # Each failed assembly with the schedules that may have broken it.
    failed = [(assembly.schedules - good, assembly) for assembly in history.assemblies if assembly.failure]
    harmful = {
        one: assembly.failure for suspects, assembly in failed for one in suspects if len(suspects) == 1
    }
    wanted = _best(records, bases, harmful, history.refused, lambda one: left > 1 or one in good)
    if left < 1 or history.is_inconclusive or wanted.schedules in works:
        return None
    explained = harmful.keys() | history.refused.keys()
    unexplained = [(suspects, one) for suspects, one in failed if not one.schedules & explained]
    if not unexplained:
        return wanted
    suspects, assembly = min(unexplained, key=lambda pair: len(pair[0]))
    # The last assembly leaves out all suspects, unless the rest is already known to work.
    schedules = wanted.schedules - suspects
    if left > 1 or schedules <= good:
        schedules = wanted.schedules & good.union(sorted(suspects)[: len(suspects) // 2])
    if schedules <= good:
        return None  # schedules that fail together but work separately: none is to blame
    chosen = {name: record for name, record in wanted.chosen.items() if schedule_id(record) in schedules}
    reason = f"one of {len(suspects)} with which the model fails: {assembly.failure}"
    left_out = dict.fromkeys(wanted.chosen.keys() - chosen.keys(), reason)
    return Selection(chosen, {**left_out, **wanted.reasons})


def _best(
    records: Sequence[Record],
    bases: Mapping[str, str],
    harmful: Mapping[ScheduleId, str],
    refused: Mapping[ScheduleId, str],
    may_replace: Callable[[ScheduleId], bool],
) -> Selection:
    """Select the best record of each workload that is neither harmful nor refused. If a better record is
    harmful or refused, its substitute must satisfy `may_replace`.
    """
    chosen: dict[str, Record] = {}
    reasons: dict[str, str] = {}
    num_harmful: Counter[str] = Counter()
    for record in sorted(records, key=lambda record: record.latency_s or math.inf):
        schedule = schedule_id(record)
        workload = bases.get(record.workload_hash, record.workload_hash)
        if workload in chosen or num_harmful[workload] >= MAX_HARMFUL:
            continue
        if schedule in harmful or schedule in refused:
            num_harmful[workload] += schedule in harmful
            reasons.setdefault(workload, harmful.get(schedule) or refused[schedule])
        elif workload not in reasons or may_replace(schedule):
            chosen[workload] = record
    return Selection(chosen, reasons)
