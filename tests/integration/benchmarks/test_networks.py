"""The benchmark of networks with real stacks, peers and turns, on networks that take seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.networks import __main__ as networks
from benchmarks.results import figures
from benchmarks.results.curves import CURVES
from benchmarks.results.figures import Figure

pytestmark = [pytest.mark.slow_lane(seconds=80), pytest.mark.timeout(1800)]
SHORT = ("--tiny", "--threads", "2", "--rounds", "2")


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_CONFIG", str(tmp_path / "no config.toml"))


def _figures(file: Path) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures.read(file).figures}


def test_a_network_is_tuned_and_takes_turns_with_its_peers(tmp_path: Path) -> None:
    file = tmp_path / "networks.json"
    given = ("--quick", "--network", "squeezenet1_1", "--trials", "12", "--peer-trials", "4")
    assert networks.main([*SHORT, *given, "--json", str(file)]) == 0
    found = _figures(file)
    label = "squeezenet1_1-tiny"
    assert found[f"{label}: trials"].value >= 12
    assert found[f"{label}: deviation relative to the allowed one"].reached
    assert found[f"{label}: latency relative to ONNX Runtime"].value > 0
    assert found[f"{label}: published latency relative to a user's process"].value > 0
    assert found[f"{label}: latency relative to MetaSchedule"].value > 0
    assert found[f"{label}: trials a second, MetaSchedule"].value > 0
    assert found[f"{label}: latency relative to the machine's limit, all subgraphs"].value > 0
    (curve,) = CURVES.read(file)
    assert curve.network == label
    assert curve.points


def test_a_network_is_compiled_then_gets_a_trial_for_each_subgraph(tmp_path: Path) -> None:
    file = tmp_path / "compiled.json"
    assert networks.main([*SHORT, "--compile", "--network", "bert_base", "--json", str(file)]) == 0
    found = _figures(file)
    label = "bert_base-tiny"
    subgraphs = found[f"{label}: subgraphs"].value
    # On a disturbed machine, the best schedules are measured again, up to three times.
    assert 0 < found[f"{label}: trials, after a trial for each subgraph"].value <= 4 * subgraphs
    assert f"{label}: latency relative to ONNX Runtime, after a trial for each subgraph" in found
    assert found[f"{label}: deviation relative to the allowed one"].reached
    mean = found["geometric mean of 1 networks: latency relative to ONNX Runtime, without trials"]
    alone = found[f"{label}: latency relative to ONNX Runtime, without trials"]
    assert mean.value == pytest.approx(alone.value)


def test_published_latencies_beside_a_busy_process(tmp_path: Path) -> None:
    file = tmp_path / "disturbed.json"
    given = ("--disturbed", "--network", "squeezenet1_1", "--trials", "8", "--json", str(file))
    assert networks.main([*SHORT, *given]) == 0
    found = _figures(file)
    label, published = "squeezenet1_1-tiny", "published latency relative to a user's process"
    assert found[f"{label}: trials"].value >= 8
    beside, after = (figure for name, figure in found.items() if name.startswith(f"{label}: {published}"))
    assert (beside.value > 0, after.value > 0) == (True, True)
