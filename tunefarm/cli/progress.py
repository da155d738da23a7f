"""Shows a job while it runs: a live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from core.durations import duration_text, latency_text
from core.job import MAX_TRIALS, JobState
from core.model_latency import fastest_tasks, network_s
from core.quantization import Quantization
from tunefarm.client.values import Footprint, Job, Task

RATE_WINDOW_S = 60.0
PLAIN_EVERY_S = 10.0
ROWS_BESIDE_TASKS = 8
ROWS_OF_LAYERS = 10


@dataclass
class TrialRate:
    """Trials a second over the last minute."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, at_s: float, trials_done: int) -> None:
        """Add a sample; `at_s` is the time of a monotonic clock."""
        self._samples.append((at_s, trials_done))
        while self._samples[0][0] < at_s - RATE_WINDOW_S:
            self._samples.popleft()

    def trials_per_s(self) -> float | None:
        """Return the trials a second; None until a trial has finished."""
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_s - first_s) if last > first and last_s > first_s else None


def share(task: Task, tasks: Sequence[Task]) -> float | None:
    """Return the task's fraction of the network's known time; None if the task isn't part of it."""
    fastest = fastest_tasks(tasks)
    total = sum(other.network_s or 0.0 for other in fastest)
    return task.network_s / total if task in fastest and task.network_s is not None else None


def by_time(tasks: Sequence[Task]) -> list[Task]:
    """Sort the costliest tasks first. Then come tasks that aren't measured yet, tasks slower than a variant
    of the same workload, and tasks that the search can't tune."""
    fastest = fastest_tasks(tasks)

    def order(task: Task) -> tuple[bool, bool, float, str]:
        is_slower = task.best_s is not None and task not in fastest
        return not task.covered, is_slower, -(task.network_s or 0.0), task.name

    return sorted(tasks, key=order)


@dataclass(frozen=True)
class JobProgress:
    """A job's progress at one moment; `at_s` is the time of a monotonic clock."""

    job: Job
    tasks: Sequence[Task]
    trials_per_s: float | None
    at_s: float

    @property
    def headline(self) -> str:
        """The job's state in one line that fits 80 columns for most names of models."""
        job = self.job
        parts = [f"{job.model_name}: {job.state}"]
        if job.state is JobState.TUNING:
            parts.append(f"{job.trials_text} trials")
            if self.trials_per_s:
                parts.append(f"{self.trials_per_s:.1f} trials/s")
            best_s, left_s = network_s(self.tasks), job.seconds_left
            best = "no latency yet" if best_s is None else f"{latency_text(best_s)} (estimate)"
            parts.append(best)
            parts.append("time left unknown" if left_s is None else f"{duration_text(left_s)} left")
        if job.onnxruntime is not None and job.onnxruntime.ratio is not None:
            parts.append(f"{job.onnxruntime.ratio:.2f} times as fast as ONNX Runtime")
        return " · ".join(parts)

    @property
    def message(self) -> str:
        """What the job does now; "" for a job that is done, whose results are shown at once."""
        return "" if self.job.state is JobState.DONE else self.job.message


class JobDisplay(Protocol):
    """Shows the progress of a job."""

    def show(self, progress: JobProgress) -> None: ...


class SilentJobDisplay:
    """Shows nothing. For `--json`, which prints only the result."""

    def show(self, progress: JobProgress) -> None:
        """Show nothing."""


@dataclass
class PlainJobDisplay:
    """A line whenever the job's state or message changes, and every ten seconds while it is tuned."""

    console: Console
    _shown: tuple[JobState, str] | None = None
    _shown_at_s: float = field(default=0.0)

    def show(self, progress: JobProgress) -> None:
        job = progress.job
        is_due = job.state is JobState.TUNING and progress.at_s - self._shown_at_s >= PLAIN_EVERY_S
        if is_due or (job.state, job.message) != self._shown:
            line = " · ".join(filter(None, (progress.headline, progress.message)))
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._shown, self._shown_at_s = (job.state, job.message), progress.at_s


@dataclass
class LiveJobDisplay:
    """A table that stays in place."""

    live: Live

    def show(self, progress: JobProgress) -> None:
        rows = max(3, self.live.console.height - ROWS_BESIDE_TASKS)
        self.live.update(render(progress, rows))


@contextlib.contextmanager
def display(console: Console, *, silent: bool) -> Iterator[JobDisplay]:
    """Yield the display that suits the console."""
    if silent or console.quiet:
        yield SilentJobDisplay()
    elif not console.is_terminal:
        yield PlainJobDisplay(console)
    else:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield LiveJobDisplay(live)


def render(progress: JobProgress, rows: int) -> Group:
    """Return the content of the live display: lines that are cut at the terminal's width, and a table of
    `rows` tasks."""
    job = progress.job
    whole = None if job.trials == MAX_TRIALS else max(1, job.trials)
    # The padding ends the bar's line.
    bar = Padding(ProgressBar(total=whole, completed=job.trials_done, width=40), 0)
    return Group(_line(progress.headline), _line(progress.message), bar, task_table(progress.tasks, rows))


def _line(text: str) -> Text:
    """Return text that never takes a second line."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def task_table(tasks: Sequence[Task], rows: int | None = None) -> Table:
    """Return a row for each task: its occurrences, trials, best latency, share of the network's time, and how
    close it is to the device's limits. Each of a number of `rows` takes one line.
    """
    table = Table(box=None, pad_edge=False)
    for name, justify in (("task", "left"), ("times", "right"), ("trials", "right"), ("best", "right")):
        table.add_column(name, justify=justify, no_wrap=name == "times")  # type: ignore[arg-type]
    table.add_column("of network", justify="right")
    table.add_column("verdict")
    shown = by_time(tasks)[:rows]
    for task in shown:
        fraction = share(task, tasks)
        best = "" if task.best_s is None and not task.covered else latency_text(task.best_s)
        why = "" if task.covered else f"fallback: {escape(task.reason)}"
        table.add_row(
            escape(task.label) if rows is None else _line(task.label),
            str(task.weight),
            str(task.trials) if task.covered else "",
            " ".join(filter(None, (best, why))),
            "" if fraction is None else f"{fraction:.0%}",
            task.verdict if rows is None else _line(task.verdict),
        )
    if len(shown) < len(tasks):
        table.add_row(f"and {len(tasks) - len(shown)} more", style="dim")
    return table


def footprint_text(footprint: Footprint | None) -> str:
    """Return a model's memory, load time and energy: "48.2 MB of memory, 7.51 ms to load"; "" if unknown."""
    if footprint is None:
        return ""
    parts = [f"{footprint.memory_bytes / 1e6:.1f} MB of memory", f"{latency_text(footprint.load_s)} to load"]
    if footprint.energy_j is not None:
        parts.append(f"{footprint.energy_j * 1e3:.3g} mJ a call")
    return ", ".join(parts)


def layer_table(quantization: Quantization) -> Table:
    """Return a row for each of the layers with the largest own errors, with signal-to-noise ratios."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("layer", "left"), ("operator", "left"), ("computes in", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("by itself", justify="right")
    table.add_column("in the model", justify="right")
    worst = sorted(quantization.layers, key=lambda layer: math.inf if layer.own_db is None else layer.own_db)
    for layer in worst[:ROWS_OF_LAYERS]:
        table.add_row(
            escape(layer.name),
            escape(layer.operator),
            "float32" if layer.kept else str(quantization.quantize),
            *("exact" if db is None else f"{db:.1f} dB" for db in (layer.own_db, layer.total_db)),
        )
    if len(worst) > ROWS_OF_LAYERS:
        table.add_row(f"and {len(worst) - ROWS_OF_LAYERS} more that lose less", style="dim")
    return table
