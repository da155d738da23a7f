"""Jobs and tasks to test with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from core.job import JobState
from tunefarm.client.values import Accuracy, AccuracyComparison, CostModelReport, HeldOutAccuracy, Job, Task

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


def cost_model(**changes: Any) -> CostModelReport:
    learned, analytic = Accuracy(200, 0.958, 0.851, 0.624), Accuracy(200, -0.5, 0.75, None)
    held_out = HeldOutAccuracy(
        learned, analytic, 800, {"hash of conv1": AccuracyComparison(learned, analytic)}
    )
    plain = CostModelReport("cafe", "a board", 12, 1000, 1000.0, 0.75, 6.5, held_out)
    return replace(plain, **changes)
