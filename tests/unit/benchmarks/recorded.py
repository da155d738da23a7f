"""Recorded jobs to replay."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.results.recordings import RecordedTask, RecordedTrial, Recording


def task(
    name: str, seconds: Sequence[float | None], *, base_workload: str = "", weight: int = 1
) -> RecordedTask:
    return RecordedTask(name, name, base_workload or name, weight, 1e9, name, True, tuple(seconds))


def recording(*tasks: RecordedTask, each_s: float = 0.5) -> Recording:
    """Return a job whose tasks took turns, with a trial every `each_s`."""
    rounds = max(len(one.seconds) for one in tasks)
    order = [
        (at, one.seconds[count])
        for count in range(rounds)
        for at, one in enumerate(tasks)
        if count < len(one.seconds)
    ]
    trials = tuple(
        RecordedTrial(at, each_s * number, secs) for number, (at, secs) in enumerate(order, start=1)
    )
    return Recording("net", "a board", 10.0, each_s * len(trials), 13.0, tuple(tasks), trials)


FLAT = task("flat", [1e-3] * 128)
STEEP = task("steep", [8e-2 * 0.95**step for step in range(128)])
