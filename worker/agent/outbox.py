"""The outbox: results that the service hasn't acknowledged yet."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from core.lease import LeaseId
from core.measurement import Built, Measurement
from proto.messages import MAX_RESULTS, Result


class Outbox:
    """Numbers results in the order in which they are added."""

    def __init__(self) -> None:
        self._results: dict[int, Result] = {}
        self._next = 1

    def add_trial(self, lease: LeaseId, trial_id: int, measurement: Measurement | Built) -> None:
        self._add(Result(self._next, lease, measurement, trial_id=trial_id))

    def add_module_run(self, lease: LeaseId, module_run_id: int, measurement: Measurement) -> None:
        self._add(Result(self._next, lease, measurement, module_run_id=module_run_id))

    def pending(self) -> tuple[Result, ...]:
        """Return the oldest unacknowledged results, as many as fit in one report."""
        return tuple(islice(self._results.values(), MAX_RESULTS))

    def acknowledge(self, numbers: Iterable[int]) -> None:
        """Delete acknowledged results. Unknown numbers, from a repeated response, are ignored."""
        for number in numbers:
            self._results.pop(number, None)

    def results_of(self, lease: LeaseId) -> dict[int, Measurement | Built]:
        """Return a lease's unacknowledged results, by trial."""
        return {
            result.trial_id: result.measurement
            for result in self._results.values()
            if result.lease == lease and result.trial_id is not None
        }

    def __len__(self) -> int:
        return len(self._results)

    def _add(self, result: Result) -> None:
        self._results[result.number] = result
        self._next += 1
