"""When the next round is due, so that no device waits for a plan and the newest results are used."""

from __future__ import annotations

from dataclasses import dataclass

from records.fleet.workers import Capacity
from records.jobs.jobs import OpenTrials

# Planning time varies, and a scheduler that plans for other jobs too comes back later. So the trials that
# are ready last for this many times as long as the last round took, but for at most MAX_AHEAD_S.
SAFETY = 2.0
MAX_AHEAD_S = 20.0


@dataclass(frozen=True)
class Lookahead:
    """A round is due when at most `max_open` trials are open, or when at most `min_ready` are ready for the
    next of the `devices` that runs out of work.
    """

    max_open: float
    min_ready: float = 0.0
    devices: int = 1

    @classmethod
    def during(cls, planning_s: float, capacity: Capacity, max_open: float) -> Lookahead:
        """Return the lookahead for a class that measures on while a round is planned for `planning_s`.

        The speed is the whole class's, even if other jobs share it: one scheduler plans for them in turns.
        """
        ahead_s = min(SAFETY * planning_s, MAX_AHEAD_S)
        return cls(max_open, ahead_s * capacity.trials_per_s, max(capacity.devices, 1))

    def is_due(self, trials: OpenTrials) -> bool:
        """Return whether the next round is due.

        A leased trial keeps only its own device busy, so the leased ones count as one device's part of them.
        """
        ready = trials.pending + trials.leased / self.devices
        return trials.total <= self.max_open or ready < self.min_ready
