"""Keep processes running with supervisord, which runs in the foreground with a generated configuration."""

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

PYTHON = (sys.executable, "-P")  # with -P, a folder named `server` in the working directory isn't imported
DIE_WITH_PARENT = (*PYTHON, "-m", "tunefarm.embedded.die_with_parent")
STOP_TIMEOUT_S = 60.0
_GROUP = "stack"
RETRIES = 4  # with pauses of 1, 2, 3 and 4 seconds


@dataclass(frozen=True)
class SupervisedProcess:
    """A command to keep running.

    A process that ends within `up_after_s` has failed to start, and is restarted a few times only. A process
    that doesn't stop is killed after `stop_after_s`.
    """

    name: str
    command: tuple[str, ...]
    stop_after_s: int = 10
    up_after_s: int = 10  # loading TVM, the slowest step that can fail, takes seconds


@dataclass(frozen=True)
class Supervisor:
    """A running supervisord."""

    process: subprocess.Popen[bytes]
    control: Path
    logs: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def given_up(self) -> str | None:
        """Return the name of a process that failed too often to be restarted, if any."""
        return next((name for name, state in self.states().items() if state == "FATAL"), None)

    def states(self) -> dict[str, str]:
        """Return supervisord's state of every process by name; {} while supervisord doesn't answer."""
        with self._proxy() as proxy:
            try:
                infos: Any = proxy.supervisor.getAllProcessInfo()
            except (OSError, xmlrpc.client.Error):
                return {}
        return {info["name"]: info["statename"] for info in infos}

    def start_again(self, name: str) -> None:
        """Restart a process that supervisord gave up. If it can't be started, it is given up again."""
        with self._proxy() as proxy, contextlib.suppress(OSError, xmlrpc.client.Error):
            proxy.supervisor.startProcess(f"{_GROUP}:{name}", False)

    def _proxy(self) -> xmlrpc.client.ServerProxy:
        transport = SupervisorTransport(None, None, f"unix://{self.control}")
        return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line of a process's log, for a message; "" if the log is empty."""
        with contextlib.suppress(OSError):
            lines = self.log(name).read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def stop(self) -> None:
        """Stop all processes, then supervisord. Kill those that don't stop in time."""
        if self.alive():
            self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # its processes end with it
            self.process.wait()


@contextlib.contextmanager
def supervise(
    processes: Sequence[SupervisedProcess],
    scratch: Path,
    logs: Path,
    environment: Mapping[str, str],
    lock: int,
) -> Iterator[Supervisor]:
    """Run the processes until the context ends. They inherit the descriptor `lock`."""
    configuration = scratch / "supervisord.conf"
    configuration.write_text(configuration_text(processes, scratch))
    command = ("tunefarm.embedded.supervisord", "--nodaemon", "--configuration", str(configuration))
    with (logs / "supervisor.log").open("ab") as log:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, *PYTHON, "-m", *command],
            cwd=logs,
            env=dict(environment),
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C reaches only the command, which stops the processes in order
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    supervisor = Supervisor(process, scratch / "control", logs)
    try:
        yield supervisor
    finally:
        # A second Ctrl-C must not leave processes behind.
        signals = signal.SIGINT, signal.SIGTERM
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
        try:
            supervisor.stop()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def configuration_text(processes: Sequence[SupervisedProcess], scratch: Path) -> str:
    """Return supervisord's configuration file. Log files are relative to the folder it is started in."""

    def escaped(value: object) -> str:
        return str(value).replace("%", "%%")

    # Processes of one group are stopped at the same time.
    text = f"""\
[supervisord]
nodaemon=true
silent=true
logfile=supervisor.log
logfile_maxbytes=1MB
logfile_backups=1
pidfile={escaped(scratch / "pid")}
minfds={FIRST_LOCK_FD}

[unix_http_server]
file={escaped(scratch / "control")}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[group:{_GROUP}]
programs={",".join(process.name for process in processes)}
"""
    for process in processes:
        text += f"""
[program:{process.name}]
command={escaped(shlex.join((*DIE_WITH_PARENT, *process.command)))}
autorestart=true
startsecs={process.up_after_s}
startretries={RETRIES}
stopwaitsecs={process.stop_after_s}
killasgroup=true
redirect_stderr=true
stdout_logfile={process.name}.log
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
    return text
