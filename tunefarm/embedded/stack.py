"""The embedded stack: server, scheduler and one local worker, supervised over one data folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from system.network import is_loopback
from system.tls import TlsFiles
from tunefarm.client.client import trust
from tunefarm.embedded.folder import DataFolder, RunningStack
from tunefarm.embedded.supervision import PYTHON, SupervisedProcess, Supervisor, supervise
from tunefarm.errors import StackError

POLL_S = 0.1
PACKAGES = Path(__file__).resolve().parents[2]
# Settings that mean another service, or how to reach it.
FOREIGN = frozenset(
    f"TUNEFARM_{name}"
    for name in (
        *("SERVER", "DATA", "CA", "CERT", "KEY", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA"),
        *("WORKER_TLS", "WORKER_CA", "WORKER_CERT", "WORKER_KEY"),
    )
)
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class StackConfig:
    """What a stack listens on. A port of 0 means any free one; a `lasting` stack outlives a single job.

    With `tls` it is reached over TLS, by its own worker too, for which there is `trust`. That worker gives up
    the instruction sets in `features`, "-NAME,-NAME".
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    grpc_port: int = 0
    token: str | None = None
    threads: int | None = None
    lasting: bool = False
    features: str | None = None
    ready_timeout_s: float = 60.0
    tls: TlsFiles = field(default_factory=TlsFiles)
    trust: TlsFiles = field(default_factory=TlsFiles)

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise StackError(f"{self.host} can be reached from other machines: set a token with --token")
        if self.tls and self.trust.ca is None:
            raise StackError("the local worker has to know whom to trust: set TUNEFARM_CA to that authority")
        if self.tls.ca is not None and self.trust.cert is None:
            raise StackError("clients need certificates, the local one too: set TUNEFARM_CERT, TUNEFARM_KEY")


@dataclass(frozen=True)
class Stack:
    """A stack that answers."""

    running: RunningStack
    folder: DataFolder
    supervisor: Supervisor

    def check(self) -> None:
        """Raises StackError when a process has ended and is not started again any more."""
        if not self.supervisor.alive():
            log = self.supervisor.log("supervisor")
            raise StackError(f"the stack's supervisor stopped, see {log}: run the same command again")
        name = self.supervisor.given_up()
        if name is not None:
            words = self.supervisor.last_words(name) or "it wrote nothing"
            raise StackError(f"the {name} keeps stopping: {words} (see {self.supervisor.log(name)})")


@contextlib.contextmanager
def start(config: StackConfig) -> Iterator[Stack]:
    """Starts the stack, waits until it answers, and stops all of it when the context ends.

    Raises StackError: no C compiler, a folder that is taken or not writable, a port in use, a process
    that does not come up. Raises TlsError.
    """
    if config.tls:
        config.tls.read()
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise StackError("no C compiler was found: install gcc, it links the tuned libraries")
    folder = DataFolder(config.data.expanduser().resolve())
    folder.prepare()
    with folder.locked() as lock, tempfile.TemporaryDirectory(prefix="tunefarm-") as scratch:
        port, grpc_port = _choose_ports(config)
        host = _in_url(EVERYWHERE.get(config.host, config.host))
        scheme = "https" if config.tls else "http"
        running = RunningStack(
            f"{scheme}://{host}:{port}", f"{host}:{grpc_port}", os.getpid(), config.lasting
        )
        environment = _environment(config, folder, port, grpc_port)
        programs = _programs(config, running)
        with supervise(programs, Path(scratch), folder.logs, environment, lock) as supervisor:
            stack = Stack(running, folder, supervisor)
            _wait_until_ready(stack, config)
            folder.announce(running)
            yield stack


def _programs(config: StackConfig, running: RunningStack) -> tuple[SupervisedProcess, ...]:
    threads = ("--threads", str(config.threads)) if config.threads else ()
    features = ("--features", config.features) if config.features else ()
    local = ("--server", running.workers_address, "--name", f"local-{socket.gethostname()}")
    return (
        SupervisedProcess("server", (*PYTHON, "-m", "server")),
        # A step that runs when the stop comes is done again by the next scheduler: short is kind enough.
        SupervisedProcess("scheduler", (*PYTHON, "-m", "scheduler"), stop_after_s=5),
        SupervisedProcess("worker", (*PYTHON, "-m", "worker", *local, *threads, *features), stop_after_s=5),
    )


def _environment(config: StackConfig, folder: DataFolder, port: int, grpc_port: int) -> dict[str, str]:
    """The processes' environment: ours without settings meant for other stacks, plus this one's."""
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    path = [str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "TUNEFARM_DATABASE_URL": folder.database_url,
        "TUNEFARM_BROKER": str(folder.broker),
        "TUNEFARM_HOST": config.host,
        "TUNEFARM_PORT": str(port),
        "TUNEFARM_GRPC_PORT": str(grpc_port),
        # The scheduler shares the worker's cores: planning ahead would disturb what is being timed.
        "TUNEFARM_PLAN_AHEAD": "0",
    }
    return kept | ours | _encryption(config) | ({"TUNEFARM_TOKEN": config.token} if config.token else {})


def _encryption(config: StackConfig) -> dict[str, str]:
    if not config.tls:
        return {}
    named = {
        "TUNEFARM_TLS_CERT": config.tls.cert,
        "TUNEFARM_TLS_KEY": config.tls.key,
        "TUNEFARM_TLS_CLIENT_CA": config.tls.ca,
        "TUNEFARM_CERT": config.trust.cert,
        "TUNEFARM_KEY": config.trust.key,
        "TUNEFARM_CA": config.trust.ca,
    }
    # The processes stand in another folder.
    return {name: str(path.expanduser().resolve()) for name, path in named.items() if path is not None}


def _choose_ports(config: StackConfig) -> tuple[int, int]:
    """The HTTP and the gRPC port. Raises StackError when one that was asked for is taken."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with contextlib.ExitStack() as opened:
        chosen = []
        for flag, wanted in (("--port", config.port), ("--grpc-port", config.grpc_port)):
            probe = opened.enter_context(socket.socket(family))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.host, wanted))
            except (OSError, OverflowError) as error:
                raise StackError(_port_problem(config.host, wanted, flag, error)) from error
            chosen.append(probe.getsockname()[1])
    return chosen[0], chosen[1]


def _port_problem(host: str, port: int, flag: str, error: Exception) -> str:
    cause = error.strerror if isinstance(error, OSError) else "no such port"
    return (
        f"can't listen on {host} port {port} ({cause}): choose another one with {flag}, 0 takes any free port"
    )


def _wait_until_ready(stack: Stack, config: StackConfig) -> None:
    deadline = time.monotonic() + config.ready_timeout_s
    headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}
    verify = trust(config.trust)
    with httpx.Client(headers=headers, timeout=5.0, trust_env=False, verify=verify) as http:
        while time.monotonic() < deadline:
            stack.check()
            if _is_ready(http, stack.running.url):
                return
            time.sleep(POLL_S)
    words = stack.supervisor.last_words("server") or "it wrote nothing"
    log = stack.supervisor.log("server")
    raise StackError(f"the server did not answer within {config.ready_timeout_s:.0f} s: {words} (see {log})")


def _is_ready(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(f"{url}/readyz").is_success
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise StackError(
                f"the service's own worker can't trust its certificate at {url} ({error}): "
                "the certificate must name that address, and TUNEFARM_CA must be its authority"
            ) from error
        return False


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
