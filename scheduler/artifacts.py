"""Packing compiled models with a manifest that says what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from records.jobs import Job
from records.schedules import Record
from records.tasks import Task
from scheduler.models import Prepared
from search.device import Device


def untuned_artifact(job: Job, device: Device, prepared: Prepared, now: float) -> bytes:
    raise NotImplementedError


def tuned_artifact(
    job: Job,
    device: Device,
    prepared: Prepared,
    tasks: Sequence[Task],
    best: Mapping[str, Record],
    now: float,
) -> bytes:
    raise NotImplementedError


def with_timings(artifact: bytes, untuned: Any, tuned: Any) -> bytes:
    raise NotImplementedError
