"""A service of real processes on this machine, without a worker; and workers for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import platformdirs
import pytest

from tests.services import free_port

CHECKOUT = Path(__file__).parents[1]
# A worker imports TVM, calibrates and fills linkers' caches. That takes minutes while other tests run.
START_S = 600.0
# Test workers share one calibration, measured beside other tests, which deployed workers don't see.
OWN_PROFILES = {
    "TUNEFARM_WORKER_PROFILES": str(platformdirs.user_cache_path("tunefarm") / "profiles of tests")
}


@dataclass(frozen=True)
class Service:
    """Server and scheduler over one folder: the URL for clients, and the address for workers."""

    url: str
    address: str
    folder: Path
    environment: dict[str, str]

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.folder}/tunefarm.db"

    def shown(self, worker: str) -> dict[str, Any]:
        """Return the service's description of a worker; {} before it connects."""
        # Without `verify=False`, each call loads the certificate authorities, which takes 20 ms.
        workers = httpx.get(f"{self.url}/v1/workers", trust_env=False, verify=False).json()["items"]
        return next((one for one in workers if one["id"] == worker), {})

    def start_tuning(self, model: Path, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tunefarm", "tune", str(model), "--server", self.url, *flags]
        return subprocess.Popen(
            [*command, "--json"],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@contextmanager
def service(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Start a service with further variables of the environment."""
    http, grpc = free_port(), free_port()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNEFARM_")}
    environment = {
        **kept,
        **OWN_PROFILES,
        "PYTHONPATH": str(CHECKOUT),
        "TUNEFARM_CONFIG": str(folder / "no config.toml"),
        "TUNEFARM_DATABASE_URL": f"sqlite:///{folder}/tunefarm.db",
        "TUNEFARM_BROKER": str(folder / "broker"),
        "TUNEFARM_PORT": str(http),
        "TUNEFARM_GRPC_PORT": str(grpc),
        # Filling a linker's cache takes half a minute, so tests share it.
        "ZIG_GLOBAL_CACHE_DIR": str(platformdirs.user_cache_path("tunefarm") / "zig"),
        "TUNEFARM_WORKER_CHILD_USER": "root",
        "TUNEFARM_WORKER_START_TIMEOUT_S": str(START_S),
        **(settings or {}),
    }
    made = Service(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}", folder, environment)
    with running(made, "server") as process:
        _await_start(made, "server", process, lambda: _answers(made.url))
        with running(made, "scheduler"):
            yield made


@contextmanager
def running(of: Service, package: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of the service's processes, with its output in the service's folder."""
    with (of.folder / f"{package}.log").open("a") as log:
        command = [sys.executable, "-m", package, *arguments]
        process = subprocess.Popen(command, env=of.environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def worker(of: Service, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker and wait until it is ready."""
    with running(of, "worker", "--server", of.address, "--name", name, *flags) as process:
        # An earlier worker may have had the same name.
        began = time.time()
        _await_start(of, "worker", process, lambda: _is_ready(of.shown(name), began))
        yield process


def _await_start(
    of: Service, package: str, process: subprocess.Popen[bytes], is_started: Callable[[], bool]
) -> None:
    """Wait until a process has started. A failure shows its log."""
    with contextlib.suppress(AssertionError):
        until(lambda: process.poll() is not None or is_started(), START_S)
    if process.poll() is not None or not is_started():
        log = (of.folder / f"{package}.log").read_text()[-5000:]
        pytest.fail(f"the {package} did not start within {START_S:g} s: exit status {process.poll()}\n{log}")


def until(true: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


def _is_ready(shown: dict[str, Any], since: float) -> bool:
    return bool(shown) and shown["last_seen_at"] >= since and shown["state"] in ("ready", "busy")


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, verify=False).is_success
    except httpx.TransportError:
        return False
