"""Run scenarios in order on rigs that are reused until something fails."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from tests.faults.environments import ENVIRONMENTS
from tests.faults.job_run import JobRun
from tests.faults.rig import Rig
from tests.faults.scenarios import RunResult, Scenario


class Rigs(AbstractContextManager["Rigs"]):
    """One rig for each environment, set up on first use, because that takes as long as a scenario."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Rig, contextlib.ExitStack]] = {}

    def run(self, scenario: Scenario) -> RunResult:
        """Run the scenario until its job has finished.

        Raises Unsupported where this machine doesn't allow the scenario; TimedOut, NotReported.
        """
        environment = scenario.environment
        if environment not in self._open:
            stack = contextlib.ExitStack()
            self._open[environment] = stack.enter_context(ENVIRONMENTS[environment]()), stack
        try:
            with contextlib.closing(JobRun(self._open[environment][0])) as run:
                recovery_s = scenario.inject(run)
                run.until_finished()
                return RunResult(run.ledger(scenario.given_up), recovery_s)
        except BaseException:
            # The rig may be left in any state.
            self._close(environment)
            raise

    def __exit__(self, *_: object) -> None:
        for environment in list(self._open):
            self._close(environment)

    def _close(self, environment: str) -> None:
        _, stack = self._open.pop(environment)
        stack.close()
