"""Jobs and tasks to test with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tunefarm.values import Job, JobState, Task

JOB = Job(
    id="j1",
    state=JobState.TUNING,
    model="0" * 64,
    model_name="net",
    shapes={},
    target="native",
    trials=100,
    minutes=None,
    seed=0,
    message="",
    error=None,
    device_class="cafe",
    created_at=1000.0,
    started_at=1000.0,
    finished_at=None,
    trials_done=0,
    untuned_latency_s=None,
    tuned_latency_s=None,
)


def job(**changes: Any) -> Job:
    return replace(JOB, **changes)


def task(
    name: str, *, weight: int = 1, best_s: float | None = None, covered: bool = True, reason: str = ""
) -> Task:
    return Task(f"hash of {name}", name, weight, covered, reason, trials=3 if best_s else 0, best_s=best_s)
