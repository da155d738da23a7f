"""The parts of a run with a fixed time: which run, which are omitted, and the cost of a failed part."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import command, networks, parts
from benchmarks.gpu.parts import BESIDE_TRIALS_S, PARTS, PEER_S, Part, _run_command, run
from benchmarks.gpu.peers import GRAPHS
from benchmarks.gpu.requirements import missing_packages
from benchmarks.networks.plan import TUNED
from benchmarks.results import figures
from benchmarks.results.output import Output
from benchmarks.timing.interleaved import Timings
from core.device import Device
from tests.devices import GPU
from tests.unit.benchmarks.measured import TUNING

HELP = ("--help",)  # ends at once, and needs no GPU
PLAN = networks.Plan("resnet18", "float32", 4, None, 1, 1, tiny=False, peer_s=30.0)


def test_parts_begin_as_long_as_there_is_time_for_them(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    given = [
        Part("first", HELP, 100.0, 50.0),
        Part("long", HELP, 500.0, 400.0),
        Part("short", HELP, 9.0, 5.0),
    ]
    # 100 s pass each time that the clock is read.
    clock = itertools.count(0, 100.0)
    assert run(given, 350.0, [], Output("gpu", [], file, 1), clock=lambda: next(clock)) == 0
    [left_out, failed] = figures.read(file).figures
    assert (left_out.value, left_out.note) == (2, "long, short")
    assert (failed.value, failed.note) == (0, "")


@pytest.mark.slow_lane(seconds=4)
def test_a_part_that_fails_is_named_and_the_next_one_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gpu.json"
    given = [Part("broken", ("--no-such-flag",), 100.0, 5.0), Part("whole", HELP, 100.0, 5.0)]
    assert run(given, 1000.0, [], Output("gpu", [], file, 1)) == 1
    [left_out, failed] = figures.read(file).figures
    assert (left_out.value, failed.value, failed.note) == (0, 1, "broken")
    said = capfd.readouterr()
    assert "broken: it ended with exit code 2" in said.err
    assert "usage: python -m benchmarks.gpu" in said.out


def test_a_part_that_hangs_is_stopped_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "STOP_S", 0.5)
    code = (
        "import subprocess, sys, time, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(1000)"
    )
    assert _run_command([sys.executable, "-c", code], 3.0) == "it was stopped after its 3 s"
    pid = int((tmp_path / "pid").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(30.0)  # raises TimeoutExpired for one that goes on


def test_networks_keep_time_to_be_published() -> None:
    [part] = (one for one in PARTS if one.name == "resnet18 in float32")
    command = part.command(BESIDE_TRIALS_S + 2 * PEER_S + 90.0)
    *_, flag, minutes, peers, seconds = command
    assert (flag, peers) == ("--network-minutes", "--peer-seconds")
    assert (float(minutes), float(seconds)) == (pytest.approx(1.5), PEER_S)


def test_each_network_is_measured_in_each_type_and_metaschedule_comes_last() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    networks = {part.arguments[5:] for part in PARTS if "--network" in part.arguments}
    assert len(networks) == 6 * 3
    assert all("MetaSchedule" in name for name in names[-3:])


def test_packages_that_a_copied_checkout_lacks_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing_packages() == []
    known, find = metadata.requires, importlib.util.find_spec
    absent = {"cffi", "celery"}  # cffi is needed by cryptography alone

    def requires(name: str) -> list[str] | None:
        if name in absent:
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "requires", requires)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sandbox" else find(name))
    assert missing_packages() == ["celery", "cffi", "sandbox"]
    assert gpu.main(["--json", "unused.json"]) == 1
    said = capsys.readouterr().err
    assert "this Python lacks celery, cffi, sandbox: install 'tunefarm[server,scheduler,worker]'" in said


def test_a_fixed_time_includes_the_detection_and_parts_are_as_tiny_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated: list[bool] = []
    seen: list[tuple[float, Sequence[str]]] = []

    def detected(_name: str, _threads: int, _run: object, calibrates: bool) -> Device:
        calibrated.append(calibrates)
        return GPU

    def run_parts(_parts: object, seconds: float, more: Sequence[str], _output: object) -> int:
        seen.append((seconds, more))
        return 0

    clock = itertools.count(0, 9.0)
    monkeypatch.setattr(command, "run_isolated", detected)
    monkeypatch.setattr("benchmarks.gpu.command.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(parts, "run", run_parts)
    file = str(tmp_path / "gpu.json")
    assert gpu.main(["--seconds", "540", "--tiny", "--json", file]) == 0
    [(seconds, more)] = seen
    assert seconds == 531.0
    assert more[-1] == "--tiny"

    def no_stack(*_: object) -> None:
        raise OSError("no stack")

    monkeypatch.setattr(networks, "run", no_stack)
    only_networks = ["--skip", "operators", "--skip", "products", "--network", "dcgan"]
    assert gpu.main([*only_networks, "--json", file]) == 1
    assert gpu.main(["--skip", "networks", "--skip", "operators", "--skip", "products", "--json", file]) == 0
    assert calibrated == [False] * 3, "only operators and products need the profile"


def test_the_estimates_ranks_are_a_figure_of_a_network() -> None:
    timings = {TUNED: Timings((0.01, 0.012))}
    found = networks.figures_of([networks.NetworkResult(PLAN, TUNING, timings, (150, 200))])
    [ranked] = [one for one in found if "right order" in one.name]
    assert (ranked.value, ranked.count, ranked.unit) == (75.0, 200, "%")
    unranked = networks.figures_of([networks.NetworkResult(PLAN, TUNING, timings, (0, 0))])
    assert not any("right order" in one.name for one in unranked)


def test_the_mean_speed_up_is_over_the_networks_of_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpu.json"
    seconds = iter((0.04, 0.01))

    def run_part(command: Sequence[str], _limit_s: float) -> str:
        timings = {TUNED: Timings((0.01,)), GRAPHS: Timings((next(seconds),))}
        result = networks.NetworkResult(replace(PLAN, network=command[-3]), TUNING, timings)
        Output("part", [], Path(command[-1]), 1).write(networks.figures_of([result]))
        return ""

    monkeypatch.setattr(parts, "_run_command", run_part)
    given = [Part(name, (name,), 100.0, 5.0) for name in ("resnet18", "dcgan")]
    assert run(given, 1000.0, [], Output("gpu", [], file, 1)) == 0
    [mean] = [one for one in figures.read(file).figures if one.subject.startswith("geometric mean")]
    assert (mean.value, mean.peer, mean.aim) == (pytest.approx(2.0), GRAPHS, "at least 2")
    assert "dcgan" in mean.note
