"""A process ends with its parent."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys

import psutil
import pytest

from system import linux

PARENT = """
import signal, subprocess, sys
child = [sys.executable, "-c", CHILD]
process = subprocess.Popen(child, stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
sys.stdin.read()
"""
CHILD = """
import os, signal, sys, time
from system.linux import die_with_parent
die_with_parent(signal.SIGTERM, os.getppid())
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the request is Linux's")
def test_a_process_dies_with_its_parent() -> None:
    command = [sys.executable, "-c", f"CHILD = {CHILD!r}\n{PARENT}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        child = psutil.Process(pid)
        parent.send_signal(signal.SIGKILL)
    child.wait(20)


def test_a_process_whose_parent_died_before_ends_at_once() -> None:
    command = "from system.linux import die_with_parent; die_with_parent(parent_pid=1 << 30); print('lives')"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is gone" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the call is Linux's")
def test_a_failed_system_call_raises() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        linux.prctl(-1, 0)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the request is x86's")
def test_a_refused_request_of_tiles_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "_XFEATURE_XTILEDATA", 63)  # Linux knows no state of this number
    with pytest.raises(OSError, match=r"."):
        linux.request_tiles()
