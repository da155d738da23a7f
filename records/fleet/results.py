"""Results of leased work: choose the results that count, and update trials, workers and leases."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import BindParameter, Double, Select, Update, and_, bindparam, func, select, update
from sqlalchemy.orm import Session

from core.measurement import SLOWED, Built, Measurement, Outcome, is_noisy, is_slowed
from records.storage.statements import table_of, update_each
from records.storage.tables import JobRow, LeaseRow, ModuleRunRow, RecordRow, TrialRow, WorkerRow

# The record of a program that is measured again keeps at most this many repeats, about four measurements.
MAX_REPEATS_KEPT = 400
# The columns of a trial that have the names of fields of its measurement's `resources`.
RESOURCES = ("registers", "spilled_bytes")

# (trial id, module run id); one of them is None.
WorkKey: TypeAlias = tuple[int | None, int | None]


@dataclass(frozen=True)
class LeaseResult:
    """A worker's result for a trial or for a module run of its lease: exactly one of the ids is given.

    `measurement` is a Built if the trial was built for another device.
    """

    measurement: Measurement | Built
    trial_id: int | None = None
    module_run_id: int | None = None

    def __post_init__(self) -> None:
        if (self.trial_id is None) == (self.module_run_id is None):
            raise ValueError("a result belongs to a trial or to a module run: give exactly one id")

    @property
    def key(self) -> WorkKey:
        return self.trial_id, self.module_run_id


class LiveLease(NamedTuple):
    """A lease that isn't closed and hasn't expired. `measured` is the number of its results so far."""

    id: str
    worker_id: str
    job_id: str
    taken_at: float
    measured: int
    build: bool


class LeasedWork(NamedTuple):
    """A trial or module run that a lease holds, with a trial's library and `repeat`."""

    library_sha: str | None = None
    repeat: int = 0


@dataclass
class Accepted:
    """The results of a report that count, by id. They finish trials and module runs, or are libraries of
    trials that now wait for a device.
    """

    trials: dict[int, Measurement] = field(default_factory=dict)
    module_runs: dict[int, Measurement] = field(default_factory=dict)
    built: dict[int, Built] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.trials) + len(self.module_runs) + len(self.built)

    @property
    def outcomes(self) -> Counter[Outcome]:
        measured = (*self.trials.values(), *self.module_runs.values())
        return Counter(one.outcome for one in measured) + Counter({Outcome.OK: len(self.built)})


def accept(lease: LiveLease, held: Mapping[WorkKey, LeasedWork], reported: Sequence[LeaseResult]) -> Accepted:
    """Return the first result of each trial or module run that the lease holds.

    A result that doesn't fit the lease or the stored library is replaced by a failure that says so.
    """
    accepted, seen = Accepted(), set[WorkKey]()
    for result in reported:
        if result.key not in held or result.key in seen:
            continue
        seen.add(result.key)
        measurement = result.measurement
        if isinstance(measurement, Built):
            is_stored = lease.build and measurement.sha == held[result.key].library_sha
            if is_stored and result.trial_id is not None:
                accepted.built[result.trial_id] = measurement
                continue
            measurement = Measurement(
                Outcome.UNKNOWN, error="the worker reported a library that is not stored"
            )
        elif lease.build and measurement.outcome is Outcome.OK:
            measurement = Measurement(
                Outcome.UNKNOWN, error="a worker that only builds reported a measurement"
            )
        if result.trial_id is not None:
            accepted.trials[result.trial_id] = measurement
        elif result.module_run_id is not None:
            accepted.module_runs[result.module_run_id] = measurement
    return accepted


def add_earlier_s(session: Session, accepted: Accepted, repeats: Collection[int]) -> None:
    """Add the earlier seconds of a program to results that measured it again. `repeats` are the ids of their
    trials. Seconds of a disturbed device are left out.
    """
    if not repeats:
        return
    earlier = {row.id: row.run_s for row in session.execute(_select_earlier(), {"trials": list(repeats)})}
    for trial_id in repeats:
        measurement, before = accepted.trials[trial_id], earlier.get(trial_id, ())
        if measurement.outcome is Outcome.OK and before:
            accepted.trials[trial_id] = replace(measurement, run_s=tuple(_undisturbed(before, measurement)))


def _undisturbed(before: Sequence[float], after: Measurement) -> Sequence[float]:
    """Return the earlier and the new seconds of a program. If the device was disturbed in one of the two
    measurements, return the seconds of the other. Disturbances only add time.
    """
    share = after.latency_s / statistics.median(before)
    if is_slowed(after.speed):
        if share > 1.0:
            return before
    elif not is_noisy(after.run_s) and (share < SLOWED or (is_noisy(before) and share <= 1.0)):
        # The timing of a program that seems slow ends early, so its few seconds may have no spread.
        return after.run_s
    # Only the newest are kept, because the device may have changed since.
    return (*before, *after.run_s)[-MAX_REPEATS_KEPT:]


@cache
def _select_earlier() -> Select[int, list[Any]]:
    """Select the ids of some trials, and the seconds that the records of their programs have."""
    same = (
        RecordRow.workload_hash == TrialRow.workload_hash,
        RecordRow.device_class == JobRow.device_class,
        RecordRow.trace_sha == TrialRow.trace_sha,
        RecordRow.outcome == Outcome.OK,
        # Imported records were measured under unknown conditions.
        RecordRow.source == "trial",
    )
    of_trials = select(TrialRow.id, RecordRow.run_s).join(JobRow, JobRow.id == TrialRow.job_id)
    return of_trials.join(RecordRow, and_(*same)).where(TrialRow.id.in_(bindparam("trials", expanding=True)))


def store(session: Session, accepted: Accepted, now: float) -> None:
    """Store accepted results. Measured work becomes done, and built trials wait for a device.

    Each statement updates all of its rows at once: a busy service has thousands of results a second.
    """
    trials = [
        {"id": trial_id, "latency_s": measurement.latency_s if measurement.run_s else None}
        | done_columns(measurement, now)
        | {name: getattr(measurement.resources, name, None) for name in RESOURCES}
        for trial_id, measurement in accepted.trials.items()
    ]
    module_runs = [
        {"id": run_id, "footprint": measurement.footprint and asdict(measurement.footprint)}
        | done_columns(measurement, now)
        for run_id, measurement in accepted.module_runs.items()
    ]
    # Devices that were lost while they built the trial don't count as attempts to measure it.
    waits = {"state": "pending", "lease_id": None, "attempts": 0}
    built = [{"id": trial_id, "build_s": one.build_s} | waits for trial_id, one in accepted.built.items()]
    for table, rows in ((TrialRow, trials), (ModuleRunRow, module_runs), (TrialRow, built)):
        if rows:
            update_each(session, table, rows)


def done_columns(measurement: Measurement, now: float) -> dict[str, Any]:
    """Return the columns of a trial or a module run that is done with this measurement."""
    return {
        "state": "done",
        "outcome": measurement.outcome,
        "run_s": list(measurement.run_s),
        "build_s": measurement.build_s,
        "speed": measurement.speed,
        "error": measurement.error,
        "finished_at": now,
    }


def credit(session: Session, lease: LiveLease, accepted: Accepted, closed_at: float | None) -> None:
    """Add results to the counters of the lease and of its worker, both locked. Close the lease if `closed_at`
    is given."""
    num_trials = len(accepted.trials) + len(accepted.built)
    measured = lease.measured + num_trials
    # Leases of module runs, and negative durations after the clock was set back, don't count for seconds per
    # trial.
    took_s = 0.0 if closed_at is None else closed_at - lease.taken_at
    latest_s = took_s / measured if measured and took_s > 0.0 else None
    values: dict[str, Any] = {"worker": lease.worker_id, "trials": num_trials, "latest_s": latest_s}
    failed = Counter({kind.value: n for kind, n in accepted.outcomes.items() if kind is not Outcome.OK})
    if failed:
        before = session.scalar(select(WorkerRow.failures_by_kind).where(WorkerRow.id == lease.worker_id))
        values |= {"failed": failed.total(), "kinds": dict(failed + Counter(before or {}))}
    connection = session.connection()
    connection.execute(_update_worker(bool(failed)), values)
    connection.execute(_update_lease(), {"lease": lease.id, "so_far": measured, "closing": closed_at})


@cache
def _update_worker(with_failures: bool) -> Update:
    worker = table_of(WorkerRow)
    latest_s: BindParameter[float | None] = bindparam("latest_s", type_=Double())
    values: dict[str, Any] = {
        "trials_done": worker.c.trials_done + bindparam("trials"),
        # The average of the latest and the stored value, or the only one that isn't null.
        "trial_s": func.coalesce((worker.c.trial_s + latest_s) / 2, latest_s, worker.c.trial_s),
    }
    if with_failures:
        values["failures"] = worker.c.failures + bindparam("failed")
        values["failures_by_kind"] = bindparam("kinds")
    return update(worker).where(worker.c.id == bindparam("worker")).values(values)


@cache
def _update_lease() -> Update:
    lease = table_of(LeaseRow)
    this_one = update(lease).where(lease.c.id == bindparam("lease"))
    return this_one.values(measured=bindparam("so_far"), closed_at=bindparam("closing"))
