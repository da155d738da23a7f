"""A competing process computes and sleeps in turns, and stops with its user."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.timing.competitor import BUSY_S, competitor

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def _cpu_s(pid: int) -> float:
    """Return the seconds of CPU that a process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_S


def _sleeps(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def _sleep_until_it_slept(pid: int, sleeps: int) -> None:
    while _sleeps(pid) < sleeps:
        time.sleep(0.02)


@pytest.mark.timeout(60)
def test_it_computes_and_sleeps_in_turns() -> None:
    before = _children()
    with competitor():
        (pid,) = _children() - before
        _sleep_until_it_slept(pid, 3)  # then Python has started
        used_s, sleeps = _cpu_s(pid), _sleeps(pid)
        _sleep_until_it_slept(pid, sleeps + 8)
        used_s, sleeps = _cpu_s(pid) - used_s, _sleeps(pid) - sleeps
    assert 0 < used_s <= (sleeps + 1) * BUSY_S + 2 / TICKS_PER_S
    assert pid not in _children()


def test_one_that_ended_early_is_told() -> None:
    def kill_it() -> None:
        before = _children()
        with competitor():
            (pid,) = _children() - before
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(RuntimeError, match="the competing process ended with -9"):
        kill_it()
