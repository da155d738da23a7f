"""The embedded stack: a server, a scheduler and a local worker under a supervisor, with one data folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import urllib3

from core.exit_code import ExitCode
from system.ip_addresses import is_loopback
from system.packages import python_path
from system.tls import TlsFiles
from tunefarm.client.client import tls_context
from tunefarm.embedded.folder import DataFolder, RunningStack
from tunefarm.embedded.supervision import PYTHON, SupervisedProcess, Supervisor, supervise
from tunefarm.errors import StackError

POLL_S = 0.1
# Environment variables of the user that refer to another service.
NOT_INHERITED = frozenset(
    f"TUNEFARM_{name}"
    for name in (
        *("SERVER", "DATA", "CA", "CERT", "KEY", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA"),
        *("WORKER_TLS", "WORKER_CA", "WORKER_CERT", "WORKER_KEY"),
    )
)
LOOPBACK_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}
SIGNING_KEY_VARIABLE = "TUNEFARM_SIGNING_KEY"
FEATURES_VARIABLE = "TUNEFARM_WORKER_FEATURES"
# A program for a separate process, because it loads TVM, which the command never does.
FEATURES_CHECK = f"""
import platform, sys
from compiler.target import detect_device
from core.instruction_sets import FeatureError, disabled_features
try:
    detect_device(without=disabled_features(sys.argv[1], platform.machine()))
except FeatureError as error:
    print(error)
    sys.exit({int(ExitCode.USAGE)})
"""


@dataclass(frozen=True)
class StackConfig:
    """The configuration of a stack: its ports, its TLS files and its worker's options. A port of 0 means any
    free one.

    A `lasting` stack outlives a single job. With `tls`, it serves TLS. Its own worker connects with the files
    in `trust`. The worker doesn't use the instruction sets in `features`, "-NAME,-NAME". With `server_alone`,
    there is no scheduler and no worker, and other commands don't find the stack.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    grpc_port: int = 0
    token: str | None = None
    threads: int | None = None
    lasting: bool = False
    features: str | None = None
    server_alone: bool = False
    ready_timeout_s: float = 60.0
    tls: TlsFiles = field(default_factory=TlsFiles)
    trust: TlsFiles = field(default_factory=TlsFiles)

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise StackError(f"{self.host} can be reached from other machines: set a token with --token")
        if self.tls and self.trust.ca is None:
            raise StackError("the local worker can't check the certificate: set TUNEFARM_CA to its authority")
        if self.tls.ca is not None and self.trust.cert is None:
            raise StackError("the local client needs a certificate too: set TUNEFARM_CERT and TUNEFARM_KEY")


@dataclass(frozen=True)
class Stack:
    """A running stack that answers."""

    running: RunningStack
    folder: DataFolder
    supervisor: Supervisor
    # Processes that supervisord gave up while the disk was full.
    starved: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Raise StackError if a process has ended and won't be restarted.

        A process that ended because the disk was full is restarted when there is space.
        """
        if not self.supervisor.alive():
            log = self.supervisor.log("supervisor")
            raise StackError(f"the stack's supervisor stopped, see {log}: run the same command again")
        name = self.supervisor.given_up()
        if name is None:
            return
        if not self.folder.has_room():
            self.starved.add(name)
        elif name in self.starved:
            self.starved.remove(name)
            self.supervisor.start_again(name)
        else:
            line = self.supervisor.last_line(name) or "it wrote nothing"
            raise StackError(f"the {name} keeps stopping: {line} (see {self.supervisor.log(name)})")


@contextlib.contextmanager
def start(config: StackConfig) -> Iterator[Stack]:
    """Start a stack, wait until it answers, and stop it when the context ends.

    Raises StackError without a C compiler, for instruction sets that this machine lacks, for a locked or
    read-only folder, for a port in use, and if a process doesn't start. Raises TlsError.
    """
    if config.tls:
        config.tls.read()
    if not config.server_alone and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        raise StackError("no C compiler was found: install gcc, it links the tuned libraries")
    _check_features(config)
    folder = DataFolder(config.data.expanduser().resolve())
    folder.prepare()
    with folder.locked() as lock, tempfile.TemporaryDirectory(prefix="tunefarm-") as scratch:
        # Imported here, because commands that use a running service don't need it.
        from system.signing import make_key

        make_key(folder.signing_key)
        port, grpc_port = _choose_ports(config)
        host = LOOPBACK_OF_WILDCARD.get(config.host, config.host)
        host = f"[{host}]" if ":" in host else host
        scheme = "https" if config.tls else "http"
        running = RunningStack(
            f"{scheme}://{host}:{port}", f"{host}:{grpc_port}", os.getpid(), config.lasting
        )
        threads = ("--threads", str(config.threads)) if config.threads else ()
        features = ("--features", config.features) if config.features else ()
        name = f"local-{socket.gethostname()}"
        worker = ("-m", "worker", "--server", running.workers_address, "--name", name, *threads, *features)
        server = SupervisedProcess("server", (*PYTHON, "-m", "server"))
        others = (
            # Five seconds are enough, because the next scheduler repeats an interrupted step.
            SupervisedProcess("scheduler", (*PYTHON, "-m", "scheduler"), stop_after_s=5),
            SupervisedProcess("worker", (*PYTHON, *worker), stop_after_s=5),
        )
        processes = (server,) if config.server_alone else (server, *others)
        environment = _environment(config, folder, port, grpc_port)
        with supervise(processes, Path(scratch), folder.logs, environment, lock) as supervisor:
            stack = Stack(running, folder, supervisor)
            _wait_until_ready(stack, config)
            if not config.server_alone:
                folder.announce(running)
            yield stack


def _check_features(config: StackConfig) -> None:
    """Raise StackError for instruction sets that this machine lacks.

    The worker checks them too, but would be restarted a few times first.
    """
    features = config.features or os.environ.get(FEATURES_VARIABLE)
    if not features:
        return
    check = [*PYTHON, "-c", FEATURES_CHECK, features]
    environment = os.environ | {"PYTHONPATH": python_path(os.environ)}
    done = subprocess.run(check, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == ExitCode.USAGE:
        raise StackError(done.stdout.strip())


def _environment(config: StackConfig, folder: DataFolder, port: int, grpc_port: int) -> dict[str, str]:
    """Return the processes' environment: the user's without settings of other services, plus this stack's."""
    environment = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
    environment |= {
        "PYTHONPATH": python_path(os.environ),
        "PYTHONUNBUFFERED": "1",
        "TUNEFARM_DATABASE_URL": folder.database_url,
        "TUNEFARM_BROKER": str(folder.broker),
        "TUNEFARM_HOST": config.host,
        "TUNEFARM_PORT": str(port),
        "TUNEFARM_GRPC_PORT": str(grpc_port),
        SIGNING_KEY_VARIABLE: str(_signing_key(folder)),
        # The scheduler shares the worker's cores, so planning ahead would disturb timings.
        "TUNEFARM_PLAN_AHEAD": "0",
        "TUNEFARM_LOCAL_WORKER": "1",
    }
    if config.tls:
        files = {
            "TUNEFARM_TLS_CERT": config.tls.cert,
            "TUNEFARM_TLS_KEY": config.tls.key,
            "TUNEFARM_TLS_CLIENT_CA": config.tls.ca,
            "TUNEFARM_CERT": config.trust.cert,
            "TUNEFARM_KEY": config.trust.key,
            "TUNEFARM_CA": config.trust.ca,
        }
        # An absolute path, because the processes run in another folder.
        environment |= {
            name: str(path.expanduser().resolve()) for name, path in files.items() if path is not None
        }
    if config.token:
        environment["TUNEFARM_TOKEN"] = config.token
    return environment


def _signing_key(folder: DataFolder) -> Path:
    """Return the file with the key that signs artifacts: the user's, otherwise the data folder's."""
    own = os.environ.get(SIGNING_KEY_VARIABLE)
    return Path(own).expanduser().resolve() if own else folder.signing_key


def _choose_ports(config: StackConfig) -> tuple[int, int]:
    """Return the HTTP and the gRPC port. Raises StackError if a given port is in use."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with contextlib.ExitStack() as opened:
        chosen = []
        for flag, port in (("--port", config.port), ("--grpc-port", config.grpc_port)):
            probe = opened.enter_context(socket.socket(family))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((config.host, port))
            except (OSError, OverflowError) as error:
                cause = error.strerror if isinstance(error, OSError) else "no such port"
                raise StackError(
                    f"can't listen on {config.host} port {port} ({cause}): "
                    f"choose another one with {flag}, 0 takes any free port"
                ) from error
            chosen.append(probe.getsockname()[1])
    return chosen[0], chosen[1]


def _wait_until_ready(stack: Stack, config: StackConfig) -> None:
    """Wait until the server is ready. Raises StackError."""
    deadline = time.monotonic() + config.ready_timeout_s
    headers = {"Authorization": f"Bearer {config.token}"} if config.token else {}
    with urllib3.PoolManager(headers=headers, timeout=5.0, ssl_context=tls_context(config.trust)) as http:
        while time.monotonic() < deadline:
            stack.check()
            try:
                if http.request("GET", f"{stack.running.url}/readyz", retries=False).status == HTTPStatus.OK:
                    return
            except urllib3.exceptions.HTTPError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise StackError(
                        f"the service's own worker can't trust its certificate at {stack.running.url} "
                        f"({error}): the certificate must name that address, and TUNEFARM_CA must be its "
                        "authority"
                    ) from error
            time.sleep(POLL_S)
    line = stack.supervisor.last_line("server") or "it wrote nothing"
    log = stack.supervisor.log("server")
    raise StackError(f"the server did not answer within {config.ready_timeout_s:.0f} s: {line} (see {log})")
