"""Faults: what is concluded from their plays, and what the command does when some can't be played."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults import __main__ as faults
from benchmarks.faults.figures import Found, figures_of
from benchmarks.faults.places import Missing
from benchmarks.faults.plays import Rigs
from benchmarks.faults.rig import GaveUp
from benchmarks.faults.scenarios import SCENARIOS, Scenario, Seen
from benchmarks.faults.stage import Ledger
from benchmarks.results import figures
from benchmarks.results.figures import Figure

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
    found = figures_of([Found(HANGS, [Seen(CLEAN, 1.0), Seen(bad, 2.0)], failed=["it hangs"])])
    assert named(found, "all faults: runs").value == 3
    assert named(found, "trials lost").value == 2
    assert named(found, "trials counted twice").value == 1
    assert named(found, "wrong schedules published").value == 1
    assert named(found, "did not finish").value == 1
    clean = named(found, "child hangs: runs without")
    assert (clean.value, clean.unit, clean.reached) == (1, "of 3", False)


def test_time_to_recovery_is_the_median_of_the_plays() -> None:
    found = figures_of([Found(HANGS, [Seen(CLEAN, float(secs)) for secs in range(1, 12)])])
    recovery = named(found, "child hangs: time to recovery")
    assert (recovery.value, recovery.unit, recovery.spread) == (6.0, "s", (2.0, 10.0))


def test_the_trial_that_took_devices_down_is_to_be_given_up() -> None:
    given_up = Ledger("done", lost=0, twice=0, wrong=0, given_up=1)
    for ledger, reached in ((given_up, True), (CLEAN, False)):
        assert named(figures_of([Found(DOOMED, [Seen(ledger, 1.0)])]), "runs without").reached is reached


def test_what_this_machine_does_not_allow_has_no_figures() -> None:
    found = figures_of([Found(HANGS, (), missing="no root")])
    assert not [figure for figure in found if "hangs" in figure.name]


class Played:
    """Rigs on which nothing is played."""

    def __init__(self, outcome: Seen | Exception) -> None:
        self._outcome = outcome
        self.plays: list[str] = []

    def __call__(self, _rigs: Rigs, scenario: Scenario) -> Seen:
        self.plays.append(scenario.name)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


@pytest.mark.parametrize(
    ("outcome", "code", "plays"),
    [(Seen(CLEAN, 1.0), 0, 2), (GaveUp("the job did not finish"), 1, 2), (Missing("takes root"), 0, 1)],
)
def test_the_command_plays_writes_and_tells(
    outcome: Seen | Exception, code: int, plays: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(outcome)
    monkeypatch.setattr(Rigs, "play", lambda rigs, scenario: played(rigs, scenario))
    file = tmp_path / "faults.json"
    assert faults.main(["--quick", "--fault", "child hangs", "--json", str(file)]) == code
    assert played.plays == ["child hangs"] * plays
    assert figures.read(file).command.startswith("python -m benchmarks.faults --quick")


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
