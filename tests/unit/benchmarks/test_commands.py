"""The commands: what they list, what they refuse, what they plan and write."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as listing
from benchmarks.networks import __main__ as networks
from benchmarks.networks.network import Measured, Plan
from benchmarks.results import curves, figures
from tests.unit.benchmarks.measured import MEASURED
from tunefarm.errors import StackError


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Networks are not measured but noted."""
    seen: list[Plan] = []

    def run(plan: Plan, folder: Path, *_: Any) -> Measured:
        assert not any(folder.iterdir())
        seen.append(plan)
        return replace(MEASURED, label=plan.label)

    monkeypatch.setattr(networks.network, "run", run)
    return seen


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """What is a package with a command, or a module that ends as one; simulated workers are no benchmark."""
    folder = Path(listing.__file__).parent
    packages = {file.parent.name for file in folder.glob("*/__main__.py")}
    modules = {
        file.stem for file in folder.glob("[!_]*.py") if 'if __name__ == "__main__"' in file.read_text()
    }
    listing.main()
    text = capsys.readouterr().out
    listed = {
        line.split()[2].partition(".")[2] for line in text.splitlines() if line.startswith("python -m ")
    }
    assert (packages | modules) - {"scale_workers"} <= listed


def test_quick_measures_resnet18_within_limits(tmp_path: Path, plans: list[Plan]) -> None:
    file = tmp_path / "networks.json"
    assert networks.main(["--quick", "--threads", "2", "--json", str(file)]) == 0
    (plan,) = plans
    assert (plan.network, plan.trials, plan.threads, plan.tiny) == ("resnet18", 300, 2, False)
    assert plan.minutes is not None
    assert plan.minutes * 60 + plan.peer_limit_s < 9 * 60
    results = figures.read(file)
    assert results.command == shlex.join(
        ["python", "-m", "benchmarks.networks", "--quick", "--threads", "2", "--json", str(file)]
    )
    assert "2 threads" in results.machine
    assert [curve.network for curve in curves.read(curves.beside(file))] == ["resnet18"]


def test_the_full_benchmark_measures_three_networks(tmp_path: Path, plans: list[Plan]) -> None:
    file = tmp_path / "networks.json"
    assert networks.main(["--json", str(file)]) == 0
    assert [plan.network for plan in plans] == ["resnet18", "mobilenet_v2", "resnet50"]
    assert all(plan.minutes is None and plan.trials == 300 for plan in plans)
    labels = {figure.name.partition(":")[0] for figure in figures.read(file).figures}
    assert labels == {"resnet18", "mobilenet_v2", "resnet50"}


def test_networks_measured_before_a_failure_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(plan: Plan, *_: Any) -> Measured:
        if plan.network != "resnet18":
            raise StackError("the worker keeps stopping")
        return MEASURED

    monkeypatch.setattr(networks.network, "run", run)
    assert networks.main(["--json", str(tmp_path / "networks.json")]) == 1
    assert capsys.readouterr().err == "benchmarks.networks: the worker keeps stopping\n"
    assert figures.read(tmp_path / "networks.json").figures


@pytest.mark.parametrize("wrong", [["--trials", "0"], ["--threads", "-1"], ["--network", "vgg"], []])
def test_wrong_flags_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [*wrong, "--json", "f"] if wrong else []
    with pytest.raises(SystemExit, match="2"):
        networks.main(given)
    assert "usage" in capsys.readouterr().err


def test_figures_that_could_not_be_written_are_refused_before_anything_is_measured(
    tmp_path: Path, plans: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        networks.main(["--json", str(tmp_path / "absent" / "f.json")])
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err
    assert plans == []
