"""Shows a job while it runs: a live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from core.durations import duration_text, latency_text, times_text
from core.job import MAX_TRIALS, JobState
from core.model_latency import fastest_tasks, network_s
from core.quantization import Quantization
from core.roofline import short_verdict
from tunefarm.cli.fitted import Column, FittedTable
from tunefarm.client.values import Footprint, Job, Task

RATE_WINDOW_S = 60.0
PLAIN_EVERY_S = 10.0
# An equal line is repeated after this time, as a sign of life.
REPEAT_EVERY_S = 300.0
# The lines of a live display besides its text and the tasks: the bar, the table's title and end, and room.
OTHER_ROWS = 6
SEPARATOR = " · "
ROWS_OF_LAYERS = 10
TASK_COLUMNS = (
    Column("task", text=True, least=20),
    Column.number("times", rank=3),
    Column.number("trials", rank=1),
    Column.number("best"),
    Column.number("of network"),
    Column("verdict", rank=2, text=True, least=25, shortened=short_verdict),
)


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
        """The job's state in one line."""
        return SEPARATOR.join(self.parts)

    @property
    def parts(self) -> list[str]:
        """The parts of the headline."""
        job, peer = self.job, self.job.onnxruntime
        parts = [f"{job.model_name}: {job.state}"]
        if job.state is JobState.TUNING:
            parts.append(f"{job.trials_text} trials")
            if self.trials_per_s:
                parts.append(f"{self.trials_per_s:.1f} trials/s")
            best_s, left_s = network_s(self.tasks), job.seconds_left
            best = "no latency yet" if best_s is None else f"{latency_text(best_s)} (estimate)"
            parts.append(best)
            if best_s is not None and peer is not None and peer.latency_s is not None:
                ratio = times_text(peer.latency_s / best_s, " times", estimated=True)
                parts.append(f"{ratio} as fast as ONNX Runtime")
            parts.append("time left unknown" if left_s is None else f"{duration_text(left_s)} left")
        elif peer is not None and peer.ratio is not None:
            parts.append(f"{times_text(peer.ratio, ' times')} as fast as ONNX Runtime")
        return parts

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
    """A line whenever the job's state or message changes, and every ten seconds while it is tuned. A line
    that says the same as the last one is left out for a while.
    """

    console: Console
    _noted: tuple[str, JobState, str] | None = None
    _shown: tuple[str, str] | None = None
    _shown_at_s: float = field(default=0.0)

    def show(self, progress: JobProgress) -> None:
        job, since_s = progress.job, progress.at_s - self._shown_at_s
        is_due = job.state is JobState.TUNING and since_s >= PLAIN_EVERY_S
        noted = job.id, job.state, job.message
        if not is_due and noted == self._noted and since_s < REPEAT_EVERY_S:
            return
        self._noted = noted
        line = SEPARATOR.join(filter(None, (progress.headline, progress.message)))
        if (job.id, line) != self._shown or since_s >= REPEAT_EVERY_S:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._shown, self._shown_at_s = (job.id, line), progress.at_s


@dataclass
class LiveJobDisplay:
    """A table that stays in place."""

    live: Live

    def show(self, progress: JobProgress) -> None:
        self.live.update(render(progress, *self.live.console.size))


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


def render(progress: JobProgress, width: int, height: int) -> Group:
    """Return the content of the live display, which fits a terminal of this size."""
    job = progress.job
    whole = None if job.trials == MAX_TRIALS else max(1, job.trials)
    # The padding ends the bar's line.
    bar = Padding(ProgressBar(total=whole, completed=job.trials_done, width=min(width, 40)), 0)
    lines = [_line(text) for text in (*_filled(progress.parts, width), progress.message)]
    rows = max(3, height - OTHER_ROWS - len(lines))
    return Group(*lines, bar, task_table(progress.tasks, rows))


def _filled(parts: Sequence[str], width: int) -> list[str]:
    """Return lines with as many parts each as fit the width."""
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}{SEPARATOR}{part}"
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return lines


def _line(text: str) -> Text:
    """Return text that never takes a second line."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def task_table(tasks: Sequence[Task], rows: int | None = None) -> FittedTable:
    """Return a row for each task, at most `rows` of the costliest.

    It has the task's occurrences, trials, best latency, share of the network's time, and how close it is to
    the device's limits, or why the search can't tune it.
    """
    shown = by_time(tasks)[:rows]
    lines = [
        (
            task.label,
            str(task.weight),
            str(task.trials) if task.covered else "",
            "" if task.best_s is None and not task.covered else latency_text(task.best_s),
            _share_text(task, tasks),
            task.verdict if task.covered else f"fallback: {task.reason}",
        )
        for task in shown
    ]
    if len(shown) < len(tasks):
        lines.append((f"and {len(tasks) - len(shown)} more", "", "", "", "", ""))
    return FittedTable(TASK_COLUMNS, lines)


def _share_text(task: Task, tasks: Sequence[Task]) -> str:
    fraction = share(task, tasks)
    return "" if fraction is None else f"{fraction:.0%}"


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
