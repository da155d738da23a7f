"""The worker's settings, read once: flags over environment (`TUNEFARM_WORKER_*`) over the values here."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import psutil
from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from proto.values import Limits

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Settings(BaseSettings):
    """Times are seconds, sizes bytes. A limit that is set holds on this device instead of the service's."""

    model_config = SettingsConfigDict(
        env_prefix="TUNEFARM_WORKER_", env_ignore_empty=True, extra="ignore", populate_by_name=True
    )

    server: str
    # The service's own variable will do as well.
    token: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("TUNEFARM_WORKER_TOKEN", "TUNEFARM_TOKEN")
    )
    name: str = Field(default_factory=lambda: host_name(), min_length=1, max_length=128)
    threads: int = Field(default_factory=lambda: usable_cores(), ge=1, le=4096)
    slots: int = Field(default=16, ge=1, le=256)
    once: bool = False
    reconnect_max_s: float = Field(default=10.0, gt=0, le=600)
    start_timeout_s: float = Field(default=120.0, gt=0)
    build_timeout_s: float | None = Field(default=None, gt=0)
    run_timeout_s: float | None = Field(default=None, gt=0)
    module_timeout_s: float | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, gt=0)

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

    @property
    def secret(self) -> str | None:
        """The token in clear."""
        return None if self.token is None else self.token.get_secret_value()

    def overrule(self, limits: Limits) -> Limits:
        """The limits that hold on this device."""
        names = ("build_timeout_s", "run_timeout_s", "module_timeout_s", "memory_bytes")
        ours = {name: getattr(self, name) for name in names}
        return replace(limits, **{name: value for name, value in ours.items() if value is not None})


def host_name() -> str:
    """This machine's name as far as it makes a worker's."""
    return "".join(filter(_fits_a_name, socket.gethostname()))[:128] or "worker"


def usable_cores() -> int:
    """Real cores that this process may use: two hardware threads of one core are no two cores."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(min(allowed, physical, _quota_cores(CGROUP_QUOTA) or allowed), 1)


def _quota_cores(path: Path) -> int | None:
    """How many cores' time a container gets, rounded down; None when it isn't limited."""
    try:
        quota, period = path.read_text().split()
        return max(int(quota) // int(period), 1)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _fits_a_name(character: str) -> bool:
    return character.isprintable() and character != " "
