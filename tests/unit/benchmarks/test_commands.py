"""The commands: the list of benchmarks, and the flags, plans and files of `benchmarks.networks`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import __main__ as listing
from benchmarks.networks import __main__ as networks
from benchmarks.networks import compiled as compiled_network
from benchmarks.networks import disturbed, tuned
from benchmarks.networks.disturbed import DisturbedPlan
from benchmarks.networks.plan import Plan
from benchmarks.networks.tuned import TunedNetwork, TuningPlan
from benchmarks.results import figures, machine
from benchmarks.results.curves import CURVES
from benchmarks.timing.cpu_masking import LIBRARIES, MaskedPackage
from tests.unit.benchmarks.measured import COMPILED, DISTURBED, MEASURED
from tunefarm.errors import StackError

MASKED = {name: MaskedPackage(name, Path("hidden"), Path("cpuid.so"), masks_avx=False) for name in LIBRARIES}


def _recorded(monkeypatch: pytest.MonkeyPatch, mode: ModuleType, measured: Any) -> list[Any]:
    """Let a mode of the benchmark return `measured` for every network. Return its plans, which are added
    later."""
    seen: list[Any] = []

    def run(plan: Plan, folder: Path, *_: Any) -> Any:
        assert not any(folder.iterdir())
        seen.append(plan)
        return replace(measured, label=plan.label)

    monkeypatch.setattr(mode, "run", run)
    return seen


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[TuningPlan]:
    """Record plans instead of measuring networks."""
    return _recorded(monkeypatch, tuned, MEASURED)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Record plans instead of compiling networks."""
    return _recorded(monkeypatch, compiled_network, COMPILED)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Sequence[str]]]:
    """Record the features masked for each package, on a processor that shows AVX-512."""
    seen: list[tuple[str, Sequence[str]]] = []

    def without(name: str, features: Sequence[str], folder: Path) -> MaskedPackage:
        seen.append((name, features))
        return MASKED[name]

    monkeypatch.setattr(networks, "mask", without)
    monkeypatch.setattr("benchmarks.networks.__main__.importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr(machine, "flags", lambda: frozenset({"sse4_2", "avx", "avx2", "avx512f"}))
    return seen


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark is a package with `__main__.py` or a module with a command; simulated workers are a part
    of one."""
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
    assert (packages | modules) - {"simulated_workers"} <= listed


def test_quick_measures_two_networks_within_limits(tmp_path: Path, plans: list[TuningPlan]) -> None:
    file = tmp_path / "networks.json"
    assert networks.main(["--quick", "--threads", "2", "--json", str(file)]) == 0
    assert [plan.network for plan in plans] == ["resnet18", "mobilenet_v2"]
    assert all((plan.trials, plan.threads, plan.tiny) == (300, 2, False) for plan in plans)
    assert all(plan.peer_trials == 0 and not plan.masked for plan in plans)
    assert sum(plan.minutes or 60 for plan in plans) <= 6
    results = figures.read(file)
    assert results.command == shlex.join(
        ["python", "-m", "benchmarks.networks", "--quick", "--threads", "2", "--json", str(file)]
    )
    assert "2 threads" in results.machine
    assert "given up" not in results.machine
    assert [curve.network for curve in CURVES.read(file)] == ["resnet18", "mobilenet_v2"]


def test_the_full_benchmark_measures_ten_networks(tmp_path: Path, plans: list[TuningPlan]) -> None:
    file = tmp_path / "networks.json"
    assert networks.main(["--json", str(file)]) == 0
    assert [plan.network for plan in plans] == list(networks.FULL)
    assert len(networks.FULL) == 10
    assert all(plan.minutes is None and plan.trials == 300 and plan.peer_trials for plan in plans)
    labels = {figure.name.partition(":")[0] for figure in figures.read(file).figures if ":" in figure.name}
    assert labels == {*networks.FULL, f"geometric mean of {len(networks.FULL)} networks"}


def test_six_networks_are_compiled(tmp_path: Path, compiled: list[Plan]) -> None:
    file = tmp_path / "compiled.json"
    assert networks.main(["--compile", "--json", str(file)]) == 0
    names = ["resnet18", "mobilenet_v2", "resnet50", "efficientnet_b0", "vit_b16", "bert_base"]
    assert [plan.network for plan in compiled] == names
    found = {figure.name: figure for figure in figures.read(file).figures}
    mean = found["geometric mean of 6 networks: latency relative to ONNX Runtime, without trials"]
    assert mean.count == len(names)
    assert not CURVES.path(file).exists()


def test_networks_beside_a_busy_process_have_published_latencies_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[DisturbedPlan] = _recorded(monkeypatch, disturbed, DISTURBED)
    file = tmp_path / "disturbed.json"
    assert networks.main(["--disturbed", "--json", str(file)]) == 0
    assert [plan.network for plan in seen] == list(networks.FULL)
    assert all(plan.minutes == networks.DISTURBED_MINUTES for plan in seen)
    found = {figure.name: figure for figure in figures.read(file).figures}
    (median,) = [figure for name, figure in found.items() if name.startswith("median") and "beside" in name]
    assert (median.value, median.count, median.reached) == (pytest.approx(0), len(networks.FULL), True)
    assert networks.main(["--disturbed", "--quick", "--json", str(file)]) == 0
    assert [plan.network for plan in seen[len(networks.FULL) :]] == list(networks.QUICK)


@pytest.mark.parametrize(
    ("name", "without", "onednn"), [("avx2", ("avx512f",), "AVX2"), ("sse42", ("avx",), "SSE41")]
)
def test_every_contestant_keeps_to_the_device_class(
    tmp_path: Path,
    name: str,
    without: tuple[str, ...],
    onednn: str,
    compiled: list[Plan],
    told: list[tuple[str, Sequence[str]]],
) -> None:
    file = tmp_path / "compiled.json"
    assert networks.main(["--compile", "--device-class", name, "--json", str(file)]) == 0
    assert told == [("onnxruntime", without), ("openvino", without)]
    assert all(plan.masked == MASKED for plan in compiled)
    assert {(plan.device_class.without, plan.device_class.onednn) for plan in compiled} == {(without, onednn)}
    assert f"given up: {without[0]} and what builds on it" in figures.read(file).machine


def test_a_class_that_gives_nothing_up_leaves_the_peers_as_they_are(
    tmp_path: Path, compiled: list[Plan], told: list[tuple[str, Sequence[str]]]
) -> None:
    file = tmp_path / "compiled.json"
    assert networks.main(["--compile", "--device-class", "avx512", "--json", str(file)]) == 0
    assert told == []
    assert all(not plan.masked and plan.device_class.onednn is None for plan in compiled)


def test_a_class_that_the_machine_cannot_stand_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "flags", lambda: frozenset({"sse4_2", "avx", "avx2"}))
    with pytest.raises(SystemExit, match="2"):
        networks.main(["--device-class", "avx512", "--json", str(tmp_path / "f.json")])
    assert "this machine can't emulate avx512, because it lacks avx512f" in capsys.readouterr().err


def test_networks_measured_before_a_failure_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(plan: TuningPlan, *_: Any) -> TunedNetwork:
        if plan.network != "resnet18":
            raise StackError("the worker keeps stopping")
        return MEASURED

    monkeypatch.setattr(tuned, "run", run)
    assert networks.main(["--json", str(tmp_path / "networks.json")]) == 1
    assert capsys.readouterr().err == "benchmarks.networks: the worker keeps stopping\n"
    assert figures.read(tmp_path / "networks.json").figures


@pytest.mark.parametrize(
    "wrong",
    [
        ["--trials", "0"],
        ["--threads", "-1"],
        ["--network", "vgg"],
        ["--device-class", "mmx"],
        ["--compile", "--disturbed"],
        [],
    ],
)
def test_wrong_flags_are_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [*wrong, "--json", "f"] if wrong else []
    with pytest.raises(SystemExit, match="2"):
        networks.main(given)
    assert "usage" in capsys.readouterr().err


def test_figures_that_could_not_be_written_are_refused_before_anything_is_measured(
    tmp_path: Path, plans: list[TuningPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        networks.main(["--json", str(tmp_path / "absent" / "f.json")])
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err
    assert plans == []
