"""Requests that tests of several subjects send to a server."""

from __future__ import annotations

from core.lease import Lease
from core.measurement import Measurement, Outcome
from proto.messages import Result

from .conftest import Worker

OK = Measurement(Outcome.OK, (2e-3, 1e-3, 3e-3), 0.05)
METRICS = {
    "trained_on": 80,
    "learned": {"records": 20, "r2": 0.9, "pairwise": 0.85, "recall": None},
    "analytic": {"records": 20, "r2": -1.5, "pairwise": 0.7, "recall": None},
    "tasks": {},
}


def leased(worker: Worker, **changes: object) -> Lease:
    lease = worker.call(**changes).lease  # type: ignore[arg-type]
    assert lease is not None
    return lease


def results(lease: Lease, measurement: Measurement = OK) -> tuple[Result, ...]:
    return tuple(
        Result(number, lease.id, measurement, trial_id=candidate.trial_id)
        for number, candidate in enumerate(lease.candidates, 1)
    )
