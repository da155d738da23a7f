"""The figures of fault scenarios, and the command's behaviour if a scenario can't run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import faults
from benchmarks.results import figures
from benchmarks.results.figures import Figure
from tests.faults.environments import Unsupported
from tests.faults.figures import ScenarioResult, figures_of
from tests.faults.job_run import Ledger
from tests.faults.rig import TimedOut
from tests.faults.rigs import Rigs
from tests.faults.scenarios import SCENARIOS, RunResult, Scenario

CLEAN = Ledger("done", lost=0, twice=0, wrong=0, given_up=0)
HANGS, DOOMED = (
    next(each for each in SCENARIOS if each.name == name)
    for name in ("child hangs", "candidate takes down every device")
)


def named(found: list[Figure], part: str) -> Figure:
    (one,) = [each for each in found if part in each.name]
    return one


def test_losses_and_duplicates_of_all_faults_are_added_up() -> None:
    bad = Ledger("done", lost=2, twice=1, wrong=1, given_up=0)
    found = figures_of(
        [ScenarioResult(HANGS, [RunResult(CLEAN, 1.0), RunResult(bad, 2.0)], failed=["it hangs"])]
    )
    assert named(found, "all faults: runs").value == 3
    assert named(found, "trials lost").value == 2
    assert named(found, "trials counted twice").value == 1
    assert named(found, "wrong schedules published").value == 1
    assert named(found, "did not finish").value == 1
    clean = named(found, "child hangs: runs without")
    assert (clean.value, clean.unit, clean.reached) == (1, "of 3", False)


def test_time_to_recovery_is_the_median_of_the_runs() -> None:
    found = figures_of([ScenarioResult(HANGS, [RunResult(CLEAN, float(secs)) for secs in range(1, 12)])])
    recovery = named(found, "child hangs: time to recovery")
    assert (recovery.value, recovery.unit, recovery.spread) == (6.0, "s", (2.0, 10.0))


def test_a_trial_that_takes_devices_down_has_to_be_given_up() -> None:
    given_up = Ledger("done", lost=0, twice=0, wrong=0, given_up=1)
    for ledger, reached in ((given_up, True), (CLEAN, False)):
        assert (
            named(figures_of([ScenarioResult(DOOMED, [RunResult(ledger, 1.0)])]), "runs without").reached
            is reached
        )


def test_a_scenario_impossible_on_this_machine_has_no_figures() -> None:
    found = figures_of([ScenarioResult(HANGS, (), unsupported="no root")])
    assert not [figure for figure in found if "hangs" in figure.name]


class Recorder:
    """Records scenarios instead of running them."""

    def __init__(self, outcome: RunResult | Exception) -> None:
        self._outcome = outcome
        self.runs: list[str] = []

    def __call__(self, _rigs: Rigs, scenario: Scenario) -> RunResult:
        self.runs.append(scenario.name)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    ("outcome", "code", "runs"),
    [
        (RunResult(CLEAN, 1.0), 0, 2),
        (TimedOut("the job did not finish"), 1, 2),
        (Unsupported("takes root"), 0, 1),
    ],
)
def test_the_command_runs_scenarios_and_writes_figures(
    outcome: RunResult | Exception, code: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(outcome)
    monkeypatch.setattr(Rigs, "run", lambda rigs, scenario: recorder(rigs, scenario))
    file = tmp_path / "faults.json"
    assert faults.main(["--quick", "--fault", "child hangs", "--json", str(file)]) == code
    assert recorder.runs == ["child hangs"] * runs
    assert figures.read(file).command.startswith("python -m benchmarks.faults --quick")


def test_fault_names_are_unique() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
