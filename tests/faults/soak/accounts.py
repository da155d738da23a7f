"""Check the invariants of a service after a soak, independently of the service's counters."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import redis
from sqlalchemy import ColumnElement, CompoundSelect, Select, func, select
from sqlalchemy.orm import Session

from compiler.packaging.artifact import unpack
from core.job import EndReason
from core.measurement import Outcome
from records.fleet import workers
from records.jobs import events, tasks, trials
from records.jobs.jobs import Job
from records.schedules import schedules
from records.storage import blobs
from records.storage.database import Database
from records.storage.tables import (
    BlobRow,
    FencedSessionRow,
    JobRow,
    LeaseRow,
    LibraryRow,
    ModelRow,
    ModuleRunRow,
    TrialRow,
)
from scheduler.app import QUEUE
from scheduler.planning.job_snapshot import ROUND
from tests.faults.rig import ActiveTime
from tests.faults.runner import run_s

# A device may be lost twice before a trial is given up.
MAX_ATTEMPTS = 2
# The most wake-ups in the queue: each sweep sends one, and they expire.
MAX_WAKE_UPS = 20
SETTLE_S = 60.0


@dataclass
class Accounts:
    """Counts of all jobs that ended, and the `mistakes` found, each one sentence.

    `reported` trials have a result of a device, `given_up` ones took two devices down, `failed` counts other
    outcomes. `traces` are those that went well, by workload and device class.
    """

    reported: int = 0
    given_up: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    traces: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    mistakes: list[str] = field(default_factory=list)

    def wrong(self, sentence: str) -> None:
        self.mistakes.append(sentence)

    def close(self, session: Session, job: Job) -> None:
        """Check an ended job before it is deleted."""
        found = [one for task in tasks.for_job(session, job.id) for one in trials.for_task(session, task.id)]
        unfinished = sum(one.state != "done" for one in found)
        # A search without promising candidates ends earlier, and says so.
        is_short = job.end_reason is EndReason.EXHAUSTED
        budget = job.request.budget.trials
        if unfinished or len(found) > budget or is_short != (len(found) < budget):
            lost = f"{len(found)} trials, {unfinished} of them without a result"
            self.wrong(f"job {job.id} was to have {budget} trials, and has {lost}")
        if not job.trials_issued == job.trials_done == len(found):
            counted = f"{job.trials_issued} issued and {job.trials_done} done"
            self.wrong(f"job {job.id} has {len(found)} trials, and counts {counted}")
        issued = sum(event.data["trials"] for event in events.of_kinds(session, job.id, [ROUND]))
        if issued != len(found):
            self.wrong(f"the rounds of job {job.id} issued {issued} trials, and it has {len(found)}")
        assert job.device_class is not None, "it was measured"
        for one in found:
            if one.outcome is Outcome.DEVICE_LOST:
                self.given_up += 1
                if one.attempts < MAX_ATTEMPTS:
                    self.wrong(f"trial {one.id} was given up after {one.attempts} devices")
                continue
            self.reported += 1
            if one.outcome is Outcome.OK:
                self.traces[one.workload_hash, job.device_class].add(one.trace)
                if any(abs(secs - run_s(one.trace)) > 1e-12 for secs in one.run_s):
                    self.wrong(f"trial {one.id} has another trial's times")
            else:
                self.failed[f"{one.outcome}: {one.error.strip().splitlines()[-1][:200]}"] += 1
        self._check_published(session, job)

    def _check_published(self, session: Session, job: Job) -> None:
        if job.artifact_sha is None:
            self.wrong(f"job {job.id} published nothing")
            return
        _, manifest = unpack(blobs.get(session, job.artifact_sha))
        hashes = [entry.workload for entry in manifest.tasks]
        known = {record.trace for record in schedules.successes(session, job.device_class or "", hashes)}
        for entry in manifest.tasks:
            if entry.trace is not None and entry.trace not in known:
                self.wrong(f"job {job.id} published a schedule that nothing verified")

    def settle(self, database: Database, acknowledged: set[str], deleted: set[str], broker: str) -> None:
        """Check the database and the broker after the last job. Delayed cleanup has SETTLE_S to finish."""
        with database.begin() as session:
            kept = set(session.scalars(select(JobRow.id)))
            if doubled := kept - acknowledged:
                self.wrong(f"{len(doubled)} jobs are stored that nobody has an answer for: a doubled request")
            if lost := acknowledged - deleted - kept:
                self.wrong(f"{len(lost)} jobs are lost: {', '.join(sorted(lost))}")
            known = workers.list_workers(session)
            counted = sum(one.trials_done for one in known if one.device_class is not None)
            if counted != self.reported:
                self.wrong(f"the workers count {counted} trials, and {self.reported} have results")
            for (workload, device_class), traces in self.traces.items():
                found = schedules.successes(session, device_class, [workload])
                stored = {record.trace for record in found}
                if stored != traces:
                    lost_records, more = len(traces - stored), len(stored - traces)
                    self.wrong(f"{lost_records} records of {workload} are lost, and {more} nobody measured")
                best = schedules.best_many(session, [workload], device_class)[workload]
                if best.latency_s != min(map(run_s, traces)):
                    self.wrong(f"the best schedule of {workload} is not its fastest")
        names = [one.id for one in known]
        left_over: dict[str, Select[int]] = {
            "leases are open": _count(LeaseRow.closed_at.is_(None)),
            "trials wait or are leased": _count(TrialRow.state != "done"),
            "timings of models wait or are leased": _count(ModuleRunRow.state != "done"),
            "libraries of trials that are done are kept": _count(LibraryRow.trial_id.is_not(None)),
            "files are kept that nothing refers to": _count(BlobRow.sha.not_in(_used_blobs())),
            "fenced sessions are of no worker": _count(FencedSessionRow.worker_id.not_in(names)),
        }

        def counts() -> dict[str, int]:
            with database.begin() as session:
                # A killed scheduler's claim lapses.
                claimed = _count(JobRow.held_until > time.time())
                queries = left_over | {"jobs that ended are claimed": claimed}
                found = {words: session.scalar(query) or 0 for words, query in queries.items()}
            return found | {"wake-ups too many wait in Redis": max(_waiting(broker) - MAX_WAKE_UPS, 0)}

        waited = ActiveTime()
        while any((left := counts()).values()) and waited() < SETTLE_S:
            time.sleep(0.5)
        for words, number in left.items():
            if number:
                self.wrong(f"{number} {words}, {SETTLE_S:.0f} s after the last job has ended")


def _count(condition: ColumnElement[bool]) -> Select[int]:
    return select(func.count()).where(condition)


def _used_blobs() -> CompoundSelect[str]:
    return select(ModelRow.sha).union(
        select(ModuleRunRow.artifact_sha),
        select(JobRow.artifact_sha).where(JobRow.artifact_sha.is_not(None)),
        select(JobRow.untuned_artifact_sha).where(JobRow.untuned_artifact_sha.is_not(None)),
    )


def _waiting(broker: str) -> int:
    with redis.Redis.from_url(broker) as client:
        return int(client.llen(QUEUE)) + int(client.hlen("unacked"))
