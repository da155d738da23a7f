"""The fastest timed model is published. In a tie with the untuned model, the tuned one is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from core.lease import ModuleKind
from core.measurement import Outcome
from records.fleet.module_runs import StoredModuleRun
from scheduler.steps.publish import judge


def timed(kind: ModuleKind, secs: Sequence[float]) -> StoredModuleRun:
    return StoredModuleRun(0, "job", kind, "sha", "done", 0, "lease", Outcome.OK, tuple(secs), "")


def around(median: float, spread: float, count: int = 40) -> list[float]:
    """Normally distributed seconds with exactly this median."""
    drawn = np.random.default_rng(0).standard_normal(count) * spread
    return (median * (1 + drawn - np.median(drawn))).tolist()


@pytest.mark.parametrize(
    ("tuned", "untuned", "published"),
    [
        (around(0.9, 0.01), around(1.0, 0.01), "tuned"),
        (around(1.0, 0.01), around(1.0, 0.01), "tuned"),
        (around(1.003, 0.01), around(1.0, 0.01), "tuned"),
        (around(1.01, 0.01), around(1.0, 0.01), "untuned"),
        (around(1.01, 0.05), around(1.0, 0.05), "tuned"),
        (around(1.03, 0.5), around(1.0, 0.5), "untuned"),
        ([1.001], [1.0], "untuned"),
    ],
)
def test_the_untuned_model_is_published_only_if_it_is_faster(
    tuned: Sequence[float], untuned: Sequence[float], published: str
) -> None:
    assert judge([timed("tuned", tuned), timed("untuned", untuned)]).run.kind == published


def test_a_tie_is_reported() -> None:
    verdict = judge([timed("tuned", around(1.003, 0.01)), timed("untuned", around(1.0, 0.01))])
    latency = "1 s (998 ms to 1.01 s with 95% confidence)"
    assert verdict.message == f"{latency}, no slower than untuned (1 s) within the noise of the timings"


def test_an_equal_latency_is_not_called_faster() -> None:
    runs = [timed("tuned", [0.010] * 5), timed("untuned", [0.0101] * 5), timed("published", [0.0102] * 5)]
    said = "10 ms, as fast as untuned (10.1 ms), as fast as what was published before (10.2 ms)"
    assert judge(runs).message == said


def test_an_earlier_model_is_replaced_only_by_an_equally_fast_model() -> None:
    runs = [timed("tuned", around(1.003, 0.01)), timed("published", around(1.0, 0.01))]
    assert judge(runs).run.kind == "published"
    assert judge([*runs, timed("untuned", around(0.999, 0.01))]).run.kind == "published"
