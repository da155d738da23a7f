"""The scheduler's settings: environment variables `TUNEFARM_*` over the defaults here."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SchedulerSettings(BaseSettings):
    """Settings of one scheduler process. Times are seconds.

    `broker` is where Celery's messages go: a folder (no server needed) or a URL such as
    `redis://host:6379/0`. `plan_ahead` batches wait while one is measured; 0 where the scheduler shares the
    worker's cores, because planning would disturb what is being timed. `alive_file` is touched after every
    step, for health checks. Jobs are claimed under `scheduler_name`, so that after a crash the scheduler of
    the same name goes on with them at once; by default it is the first free of HOST-1, HOST-2..., see
    `scheduler.identity`.
    """

    model_config = SettingsConfigDict(
        env_prefix="TUNEFARM_", env_ignore_empty=True, extra="ignore", frozen=True
    )

    broker: str = Field(min_length=1)
    database_url: str = Field(min_length=1)
    scheduler_name: str | None = Field(default=None, min_length=1)
    alive_file: Path | None = None
    plan_ahead: int = Field(default=1, ge=0, le=8)
    batch_size: int = Field(default=32, ge=1, le=1024)
    trials_per_pick: int = Field(default=4, ge=1, le=256)
    claim_ttl_s: float = Field(default=900.0, gt=0)
    sweep_interval_s: float = Field(default=5.0, gt=0)
    max_failures: int = Field(default=5, ge=1)
