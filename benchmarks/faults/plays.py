"""Playing scenarios one after the other on rigs that are kept as long as all goes well."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from benchmarks.faults import scenarios
from benchmarks.faults.places import PLACES
from benchmarks.faults.rig import Rig
from benchmarks.faults.scenarios import Scenario, Seen
from benchmarks.faults.stage import Stage


class Rigs(AbstractContextManager["Rigs"]):
    """One rig for each place, set up when it is first played on: that takes seconds, a play as long."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Rig, contextlib.ExitStack]] = {}

    def play(self, scenario: Scenario) -> Seen:
        """Raises Missing where this machine doesn't allow it; GaveUp, NotNamed."""
        rig = self._rig(scenario.place)
        try:
            return scenarios.run(scenario, Stage(rig))
        except BaseException:
            # Nobody knows what it left behind.
            self._close(scenario.place)
            raise

    def __exit__(self, *_: object) -> None:
        for place in list(self._open):
            self._close(place)

    def _rig(self, place: str) -> Rig:
        if place not in self._open:
            stack = contextlib.ExitStack()
            self._open[place] = stack.enter_context(PLACES[place]()), stack
        return self._open[place][0]

    def _close(self, place: str) -> None:
        _, stack = self._open.pop(place)
        stack.close()
