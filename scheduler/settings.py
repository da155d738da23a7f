"""The scheduler's settings: environment variables `TUNEFARM_*`, read once per process."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.device import Device
from system.outbound import parse_networks


class SchedulerSettings(BaseSettings):
    """The settings of the scheduler's process. Times are seconds.

    broker           a folder (no server needed) or a URL such as `redis://host:6379/0`
    signing_key      a file with the private key, in PEM, that signs artifacts; by default they aren't signed
    blob_store       where models and artifacts are stored, as for the servers; the database by default
    webhook_allow    private networks that webhooks may reach, such as "10.0.0.0/8,192.168.1.5"
    audit_days       how long lines of the audit log are kept
    reset_command    resets the device of a lost worker, whose name is its last argument; for one scheduler
    scheduler_name   names the claims on jobs, so a scheduler continues at once after a crash; by default the
                     first free name of HOST-1, HOST-2..., see `scheduler.identity`
    alive_file       is touched after every step, so that a watchdog can tell whether the process hangs
    metrics_port     where Prometheus finds this process's metrics, on `metrics_host`; none without it
    plan_ahead       fewest batches kept waiting while one is measured; 0 if the planner shares the worker's
                     cores, because planning would disturb the timing; at least 1 for GPUs
    local_worker     whether a worker is started on this machine together with the scheduler
    trials_per_pick  trials that a task gets each time the allocator picks it
    epsilon          the probability that a pick goes to a random task, not to the one with the largest
                     expected gain
    claim_ttl_s      seconds after which another scheduler may take a killed scheduler's job; a claim is
                     renewed while a step runs
    max_failures     consecutive attempts at a step without progress, after which the job fails
    """

    model_config = SettingsConfigDict(
        env_prefix="TUNEFARM_", env_ignore_empty=True, extra="ignore", frozen=True
    )

    broker: str = Field(min_length=1)
    database_url: str = Field(min_length=1)
    blob_store: str | None = None
    signing_key: Path | None = None
    webhook_allow: str = ""
    audit_days: float = Field(default=90, gt=0, le=36500)
    reset_command: str | None = None
    scheduler_name: str | None = Field(default=None, min_length=1)
    alive_file: Path | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    plan_ahead: int = Field(default=1, ge=0, le=8)
    batch_size: int = Field(default=32, ge=1, le=1024)
    local_worker: bool = False
    trials_per_pick: int = Field(default=4, ge=1, le=256)
    epsilon: float = Field(default=0.05, ge=0, le=1)
    claim_ttl_s: float = Field(default=60.0, gt=0)
    sweep_interval_s: float = Field(default=5.0, gt=0)
    max_failures: int = Field(default=5, ge=1)

    def batches_ahead(self, device: Device) -> int:
        """Return the number of batches to keep waiting while one is measured.

        At least one batch waits for a GPU, because planning on its host's cores doesn't change its latencies.
        """
        return self.plan_ahead if device.gpu is None else max(self.plan_ahead, 1)

    @field_validator("webhook_allow")
    @classmethod
    def _networks(cls, text: str) -> str:
        parse_networks(text)
        return text

    @field_validator("reset_command")
    @classmethod
    def _is_command(cls, text: str | None) -> str | None:
        try:
            words = shlex.split(text or "")
        except ValueError as error:
            raise ValueError("its quotation marks must be in pairs") from error
        if words and shutil.which(words[0]) is None:
            raise ValueError("it must begin with a program that is here and executable")
        return text
