"""The parts of a run with a fixed time: which run, which are omitted, and the cost of a failed part."""

from __future__ import annotations

import contextlib
import itertools
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu import parts
from benchmarks.gpu.parts import BESIDE_TRIALS_S, PARTS, Part, _run_command, run
from benchmarks.results import figures
from benchmarks.results.output import Output

HELP = ("--help",)  # ends at once, and needs no GPU


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
    *_, flag, minutes = part.command(BESIDE_TRIALS_S + 90.0)
    assert flag == "--network-minutes"
    assert float(minutes) == pytest.approx(1.5)


def test_each_network_is_measured_in_each_type_and_metaschedule_comes_last() -> None:
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names)
    networks = {part.arguments[5:] for part in PARTS if "--network" in part.arguments}
    assert len(networks) == 6 * 3
    assert all("MetaSchedule" in name for name in names[-3:])
