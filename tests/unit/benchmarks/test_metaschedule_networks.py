"""MetaSchedule's rate, read from the files in its folder."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.engines import metaschedule_networks
from benchmarks.engines.metaschedule_networks import PeerFailed, TrialRate, read_rate, trial_rate


def _leave(folder: Path, run_s: list[float]) -> None:
    lines = [json.dumps([0, [[], [secs], {}, []]]) for secs in run_s]
    for name, text, at_s in (
        (metaschedule_networks.STARTED, "", 1000.0),
        (metaschedule_networks.WORKLOADS, "[]\n", 1030.0),
        (metaschedule_networks.RECORDS, "".join(f"{line}\n" for line in lines), 1110.0),
    ):
        (folder / name).write_text(text)
        os.utime(folder / name, (at_s, at_s))


def test_trials_and_seconds_come_from_the_records(tmp_path: Path) -> None:
    _leave(tmp_path, [0.001] * 63 + [1e10])
    rate = read_rate(tmp_path)
    assert rate == TrialRate(trials=64, failed=1, seconds=110.0, set_up_s=30.0)
    assert rate.per_s == pytest.approx(64 / 110)


def test_over_more_trials_the_set_up_is_paid_once() -> None:
    rate = TrialRate(trials=64, failed=0, seconds=94.0, set_up_s=30.0)
    assert rate.per_s_over(64) == pytest.approx(rate.per_s)
    assert rate.per_s_over(300) == pytest.approx(300 / 330)


def test_without_records_there_is_no_rate(tmp_path: Path) -> None:
    assert read_rate(tmp_path) is None
    _leave(tmp_path, [])
    assert read_rate(tmp_path) is None


def _become(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """A program that replaces the interpreter, and so MetaSchedule."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def _run(folder: Path, limit_s: float) -> TrialRate | None:
    work = folder / "work"
    work.mkdir()
    return trial_rate(Path("model.onnx"), "{}", threads=2, trials=4, limit_s=limit_s, folder=work)


def test_a_failure_is_reported_with_its_last_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _become(monkeypatch, tmp_path, "echo first; echo No module named cloudpickle >&2; exit 1")
    with pytest.raises(PeerFailed, match=r"^No module named cloudpickle$"):
        _run(tmp_path, 30)


def _ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # where no process reaps orphans
    except psutil.NoSuchProcess:
        return True


def test_at_the_time_limit_the_whole_group_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _become(monkeypatch, tmp_path, 'sleep 600 & echo $! > "$4/pid"; wait')
    assert _run(tmp_path, 0.5) is None
    child = int((tmp_path / "work" / "pid").read_text())
    deadline_s = time.monotonic() + 10
    while not _ended(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_the_peer_runs_with_the_requested_threads_and_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _become(monkeypatch, tmp_path, 'echo "$TVM_NUM_THREADS $6" > "$4/said"')
    assert _run(tmp_path, 30) is None
    assert (tmp_path / "work" / "said").read_text() == "2 4\n"
