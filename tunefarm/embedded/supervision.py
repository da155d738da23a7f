"""supervisord, run in the foreground over a generated configuration: starts, restarts and stops processes."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from tunefarm.embedded.folder import FIRST_LOCK_FD

PYTHON = (sys.executable, "-P")  # -P: a folder named `server` where the user stands is not our package
TETHER = (*PYTHON, "-m", "tunefarm.embedded.tether")
STOP_TIMEOUT_S = 60.0
RETRIES = 4  # after 1, 2, 3 and 4 seconds


@dataclass(frozen=True)
class SupervisedProcess:
    """A process to keep alive. One that ends within `up_after_s` did not start.

    Starting is tried a few times only. One that was asked to stop is killed after `stop_after_s`.
    """

    name: str
    command: tuple[str, ...]
    stop_after_s: int = 10
    up_after_s: int = 10  # loading TVM, the slowest thing that can fail, takes seconds


@dataclass(frozen=True)
class Supervisor:
    """A running supervisord."""

    process: subprocess.Popen[bytes]
    control: Path
    logs: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def given_up(self) -> str | None:
        """The name of a program that failed so often that it is not started again, if there is one."""
        return next((name for name, state in self.states().items() if state == "FATAL"), None)

    def states(self) -> dict[str, str]:
        """supervisord's word for the state of every program; empty while it can't be asked."""
        transport = SupervisorTransport(None, None, f"unix://{self.control}")
        with xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport) as proxy:
            try:
                infos: Any = proxy.supervisor.getAllProcessInfo()
            except (OSError, xmlrpc.client.Error):
                return {}
        return {info["name"]: info["statename"] for info in infos}

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def last_words(self, name: str) -> str:
        """The last line that a program wrote, for a message; empty when it wrote none."""
        with contextlib.suppress(OSError):
            lines = self.log(name).read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def stop(self) -> None:
        """Stops every program, then supervisord; kills what does not stop in time."""
        if self.alive():
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the programs are tethered to it
            self.process.wait()


@contextlib.contextmanager
def supervise(
    programs: Sequence[SupervisedProcess],
    scratch: Path,
    logs: Path,
    environment: Mapping[str, str],
    lock: int,
) -> Iterator[Supervisor]:
    """Runs the programs until the context ends. They inherit the descriptor `lock`."""
    control = scratch / "control"
    settings = scratch / "supervisord.conf"
    settings.write_text(settings_text(programs, scratch))
    with (logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *TETHER,
                *PYTHON,
                "-m",
                "supervisor.supervisord",
                "--nodaemon",
                "--configuration",
                str(settings),
            ],
            cwd=logs,
            env=dict(environment),
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C reaches the command alone, which stops things in order
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    supervisor = Supervisor(process, control, logs)
    try:
        yield supervisor
    finally:
        with _uninterrupted():
            supervisor.stop()


def settings_text(programs: Sequence[SupervisedProcess], scratch: Path) -> str:
    """supervisord's configuration file. Logs go where it is started: their names are relative."""
    head = f"""\
[supervisord]
nodaemon=true
silent=true
logfile=supervisor.log
logfile_maxbytes=1MB
logfile_backups=1
pidfile={_literal(scratch / "pid")}
minfds={FIRST_LOCK_FD}

[unix_http_server]
file={_literal(scratch / "control")}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    # As one group they stop at the same time.
    group = "\n[group:stack]\nprograms=" + ",".join(program.name for program in programs) + "\n"
    return head + group + "".join(map(_section, programs))


def _section(program: SupervisedProcess) -> str:
    return f"""
[program:{program.name}]
command={_literal(shlex.join((*TETHER, *program.command)))}
autorestart=true
startsecs={program.up_after_s}
startretries={RETRIES}
stopwaitsecs={program.stop_after_s}
killasgroup=true
redirect_stderr=true
stdout_logfile={program.name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""


def _literal(value: object) -> str:
    return str(value).replace("%", "%%")


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
