"""The worker's settings: flags over environment (`TUNEFARM_WORKER_*`) over the defaults here."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
import psutil
from pydantic import AliasChoices, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.instruction_sets import disabled_features
from core.lease import MEMORY_BYTES, Limits
from system.ip_addresses import is_loopback
from system.tls import TlsFiles

# More than most devices measure in the 20 s of a lease, so the service leases fewer.
SLOTS = 64
# Few, because built candidates stay in memory until they are measured.
MAX_BUILT_TOGETHER = 16
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def _shared(name: str) -> Any:
    """Declare a setting that may also be set by the variable that clients of the service use."""
    return Field(default=None, validation_alias=AliasChoices(f"TUNEFARM_WORKER_{name}", f"TUNEFARM_{name}"))


class WorkerSettings(BaseSettings):
    """Settings of one worker process. Times are seconds, sizes bytes.

    With `build`, the worker only compiles candidates for other devices. With `gpu`, it measures a GPU of this
    machine. `features` has the instruction sets that it doesn't use, "-NAME,-NAME". `tls`, and each of the
    TLS files, enables encryption. `ca` has the authorities for the service's certificate, by default the
    public ones. `cert` and `key` are the worker's own. A limit (`build_timeout_s`, `run_timeout_s`,
    `module_timeout_s`, `memory_bytes`) overrides the service's limit. By default, the service's limit
    applies, up to `max_timeout_s` and `max_memory_bytes`.
    """

    model_config = SettingsConfigDict(
        env_prefix="TUNEFARM_WORKER_", env_ignore_empty=True, extra="ignore", populate_by_name=True
    )

    server: str
    token: SecretStr | None = _shared("TOKEN")
    tls: bool = False
    ca: Path | None = _shared("CA")
    cert: Path | None = _shared("CERT")
    key: Path | None = _shared("KEY")
    name: str = Field(default_factory=lambda: host_name(), min_length=1, max_length=128)
    # A file that is touched after every response of the service, for health checks.
    alive_file: Path | None = None
    # The folder of calibrated profiles.
    profiles: Path = Field(default_factory=lambda: platformdirs.user_cache_path("tunefarm") / "profiles")
    threads: int = Field(default_factory=lambda: usable_cores(), ge=1, le=4096)
    features: str = ""
    slots: int = Field(default=SLOTS, ge=1, le=256)
    once: bool = False
    build: bool = False
    # The index of the GPU to measure, among the GPUs and slices of this machine; None for the CPU.
    gpu: Annotated[int, Field(ge=0)] | Literal["only"] | None = None
    # The user that runs measured code when the worker runs as root.
    child_user: str = Field(default="nobody", min_length=1)
    # Exit if the sandbox of measured code has gaps.
    require_sandbox: bool = False
    # Exit with code 10 when the desired state is update, so that a supervisor updates and restarts the
    # worker.
    updates: bool = False
    reconnect_max_s: float = Field(default=10.0, gt=0, le=600)
    start_timeout_s: float = Field(default=120.0, gt=0)
    build_timeout_s: float | None = Field(default=None, gt=0)
    run_timeout_s: float | None = Field(default=None, gt=0)
    module_timeout_s: float | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, gt=0)
    max_timeout_s: float = Field(default=900.0, gt=0)
    max_memory_bytes: int = Field(
        default_factory=lambda: max(psutil.virtual_memory().total, MEMORY_BYTES), gt=0
    )

    @field_validator("server")
    @classmethod
    def _is_address(cls, server: str) -> str:
        host, _, port = server.rpartition(":")
        if "/" in server or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
            raise ValueError("the address of the service's gRPC port is HOST:PORT")
        return server

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not name.isprintable() or " " in name:
            raise ValueError("a worker's name has no spaces and only printable characters")
        return name

    @field_validator("features")
    @classmethod
    def _are_instruction_sets(cls, features: str) -> str:
        disabled_features(features, platform.machine())
        return features

    @model_validator(mode="after")
    def _fits_gpu(self) -> WorkerSettings:
        if self.gpu is not None and (self.build or self.features):
            raise ValueError(
                "a worker measures a GPU, or builds, or gives up a CPU's instruction sets: leave out "
                "--gpu, or --build and --features"
            )
        return self

    @property
    def without(self) -> tuple[str, ...]:
        """The names of the instruction sets that the worker doesn't use."""
        return disabled_features(self.features, platform.machine())

    @property
    def build_threads(self) -> int:
        """The threads that build candidates. Builds don't disturb a GPU's measurements. One core is left for
        the process that launches kernels.
        """
        return self.threads if self.gpu is None else max(self.threads - 1, 1)

    @property
    def build_together(self) -> int:
        """The number of candidates that are built at once.

        While a GPU measures a batch, the next one is built. A batch has a candidate for each thread, because
        the GPU waits for the first batch of a lease.
        """
        most = min(self.slots, MAX_BUILT_TOGETHER)
        return most if self.gpu is None else min(most, self.build_threads)

    @property
    def tls_files(self) -> TlsFiles | None:
        """The TLS files; None for a connection in clear. Raises TlsError."""
        files = TlsFiles(self.cert, self.key, self.ca)
        return files if files or self.tls else None

    @property
    def local(self) -> bool:
        """Whether the service's address belongs to this machine."""
        return is_loopback(self.server.rpartition(":")[0].strip("[]"))

    @property
    def secret(self) -> str | None:
        """The token in clear."""
        return None if self.token is None else self.token.get_secret_value()

    def override_limits(self, limits: Limits) -> Limits:
        """Return the limits for this device, given a lease's."""
        held: dict[str, Any] = {}
        for name in ("build_timeout_s", "run_timeout_s", "module_timeout_s", "memory_bytes"):
            most = self.max_memory_bytes if name == "memory_bytes" else self.max_timeout_s
            own = getattr(self, name)
            held[name] = own if own is not None else min(getattr(limits, name), most)
        return replace(limits, **held)


def host_name() -> str:
    """Return this machine's name without the characters that a worker's name can't have."""
    name = "".join(one for one in socket.gethostname() if one.isprintable() and one != " ")
    return name[:128] or "worker"


def usable_cpus() -> tuple[str, ...]:
    """Return the logical CPUs that this process may use, such as "cpu0"; none where that is unknown."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(f"cpu{number}" for number in sorted(os.sched_getaffinity(0)))


def usable_cores() -> int:
    """Return the number of physical cores that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(min(allowed, physical, _quota_cores(CGROUP_QUOTA) or allowed), 1)


def _quota_cores(path: Path) -> int | None:
    """Return the cores in a container's CPU quota, rounded down; None without a quota."""
    try:
        quota, period = path.read_text().split()
        return max(int(quota) // int(period), 1)
    except (OSError, ValueError, ZeroDivisionError):
        return None
