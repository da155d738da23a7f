"""Tune a network beside a busy process, and compare what is published with what a user's process sees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.networks.plan import Plan, time_alone
from benchmarks.networks.session import Tuning, session
from benchmarks.timing.competitor import competitor
from benchmarks.timing.interleaved import Timings


@dataclass(frozen=True, kw_only=True)
class DisturbedPlan(Plan):
    """The settings of a network's tuning, limited to `minutes`."""

    trials: int
    minutes: float


@dataclass(frozen=True)
class DisturbedNetwork:
    """A network tuned and timed beside a process that uses a core for a third of the time.

    `disturbed` has the timings of the tuned model right after publishing, in a user's process, beside the
    busy process. `quiet` has those after that process ended.
    """

    label: str
    tuning: Tuning
    disturbed: Timings
    quiet: Timings


def run(plan: DisturbedPlan, folder: Path, console: Console) -> DisturbedNetwork:
    """Tune and time a network in an empty `folder`. Raises CommandError or ClientError as `Session.tune`
    does, RuntimeError if the busy process ended."""
    model = plan.write(folder)
    with session(folder / "data", plan.threads, plan.device_class, console) as stack:
        with competitor():
            tuning = stack.tune(model, plan.trials, folder / "tuned", minutes=plan.minutes)
            disturbed = time_alone(tuning, plan)
        quiet = time_alone(tuning, plan)
    return DisturbedNetwork(plan.label, tuning, disturbed, quiet)
