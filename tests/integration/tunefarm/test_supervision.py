"""Processes are restarted, given up after some tries, and never outlive the command that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.faults.environments import Unsupported, full, small_tmpfs
from tunefarm.embedded.folder import DataFolder
from tunefarm.embedded.supervision import SupervisedProcess, Supervisor, supervise

ROOT = Path(__file__).parents[3]
SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")
PATIENCE_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path / "100% data")
    made.prepare()
    return made


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    made = tmp_path / "5% scratch"
    made.mkdir()
    return made


@contextmanager
def start(folder: DataFolder, scratch: Path, *programs: SupervisedProcess) -> Iterator[Supervisor]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with folder.locked() as lock, supervise(programs, scratch, folder.logs, environment, lock) as supervisor:
        yield supervisor


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_all_stop_together(folder: DataFolder, scratch: Path) -> None:
    with start(
        folder, scratch, SupervisedProcess("one", SLEEPER, 5, 1), SupervisedProcess("two", SLEEPER, 5, 1)
    ) as supervisor:
        until(lambda: supervisor.states() == {"one": "RUNNING", "two": "RUNNING"})
        before = psutil.Process(supervisor.process.pid).children()
        before[0].kill()
        until(lambda: not before[0].is_running())
        until(lambda: len(psutil.Process(supervisor.process.pid).children()) == 2)
        after = psutil.Process(supervisor.process.pid).children()
    assert not any(process.is_running() for process in before + after)
    with folder.locked():
        pass


@pytest.mark.slow
def test_a_process_that_keeps_failing_is_given_up_with_its_last_line(
    folder: DataFolder, scratch: Path
) -> None:
    broken = (sys.executable, "-c", "raise SystemExit('100% out of luck')")
    with start(
        folder, scratch, SupervisedProcess("good", SLEEPER, 5, 1), SupervisedProcess("bad", broken, 5, 1)
    ) as supervisor:
        until(lambda: supervisor.given_up() == "bad")
        assert supervisor.last_line("bad") == "100% out of luck"
        assert supervisor.last_line("nobody") == ""


KILLED_LATER = """
import os, sys, time
from pathlib import Path
from tunefarm.embedded.folder import DataFolder
from tunefarm.embedded.supervision import SupervisedProcess, supervise
folder = DataFolder(Path(sys.argv[1]))
program = SupervisedProcess("sleeper", (sys.executable, "-c", "import time; time.sleep(600)"), 5, 1)
scratch = Path(sys.argv[2])
with folder.locked() as lock, supervise([program], scratch, folder.logs, os.environ, lock) as running:
    while running.states() != {"sleeper": "RUNNING"}:
        time.sleep(0.05)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows it")
@pytest.mark.parametrize("victim", ["command", "supervisor"])
def test_nothing_is_left_behind_when_something_is_killed(
    folder: DataFolder, scratch: Path, victim: str
) -> None:
    arguments = [sys.executable, "-c", KILLED_LATER, str(folder.path), str(scratch)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"ready\n"
        family = psutil.Process(command.pid).children(recursive=True)
        assert len(family) == 2
        os.kill(command.pid if victim == "command" else family[0].pid, signal.SIGKILL)
        until(lambda: not any(process.is_running() and process.status() != "zombie" for process in family))
        command.kill()
    with folder.locked():
        pass


LOGGING = "import time; [time.sleep(0.001) for _ in iter(int, 1) if not print('x' * 5000, flush=True)]"
CHATTY = (sys.executable, "-c", LOGGING)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB: as much as the logs of a chatty process, which are rotated at 10 MB."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(small_tmpfs(tmp_path / "disk", 24 << 20))
        except Unsupported as missing:
            pytest.skip(str(missing))
        yield tmp_path / "disk"


@pytest.mark.slow
def test_supervisord_outlives_a_full_disk(small_disk: Path, scratch: Path) -> None:
    """Log lines without space are lost. Processes are restarted, and logs continue when there is space."""
    folder = DataFolder(small_disk / "data")
    folder.prepare()
    programs = (SupervisedProcess("chatty", CHATTY, 5, 1), SupervisedProcess("one", SLEEPER, 5, 1))

    def kill_all() -> None:
        for child in psutil.Process(supervisor.process.pid).children():
            child.kill()

    def are_up() -> bool:
        return supervisor.states() == {"chatty": "RUNNING", "one": "RUNNING"}

    with start(folder, scratch, *programs) as supervisor:
        until(are_up)
        with full(small_disk):
            time.sleep(2.0)  # the chatty one goes on, beyond the size at which its log is rotated
            kill_all()
            time.sleep(0.5)
            until(are_up)
        for old in folder.logs.glob("chatty.log.*"):
            old.unlink()
        ups = supervisor.log("one").read_text().count("up")
        kill_all()
        until(lambda: supervisor.log("one").read_text().count("up") > ups)
        assert supervisor.alive()
