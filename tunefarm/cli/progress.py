"""Shows a job while it runs: a live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from core.durations import duration_text, latency_text
from core.job import JobState
from tunefarm.cli.estimate import by_time, network_s, share
from tunefarm.client.values import Job, Task

PLAIN_EVERY_S = 10.0
ROWS_BESIDE_TASKS = 9


@dataclass(frozen=True)
class JobProgress:
    """What is known of a job at one moment. `at_s` is the time of a clock that never goes back."""

    job: Job
    tasks: Sequence[Task]
    trials_per_s: float | None
    left_s: float | None
    at_s: float

    @property
    def headline(self) -> str:
        """The whole state in one line."""
        job = self.job
        parts = [f"{job.model_name}: {job.state}"]
        if job.message:
            parts.append(job.message)
        if job.state is JobState.TUNING:
            parts.append(f"{job.trials_text} trials")
            parts.append(f"{latency_text(network_s(self.tasks))} end to end (estimate)")
            parts.append(
                f"{duration_text(self.left_s)} left" if self.left_s is not None else "time left unknown"
            )
        return " · ".join(parts)


class JobDisplay(Protocol):
    """Is shown every new picture of a job."""

    def show(self, picture: JobProgress) -> None: ...


class SilentJobDisplay:
    """For `--json`: the result is all that is wanted."""

    def show(self, picture: JobProgress) -> None:
        """Shows nothing."""


@dataclass
class PlainJobDisplay:
    """A line whenever the job's state or message changes, and now and then in between."""

    console: Console
    _said: tuple[JobState, str] | None = None
    _said_at_s: float = field(default=0.0)

    def show(self, picture: JobProgress) -> None:
        state = (picture.job.state, picture.job.message)
        due = picture.job.state is JobState.TUNING and picture.at_s - self._said_at_s >= PLAIN_EVERY_S
        if state != self._said or due:
            self.console.print(picture.headline, markup=False, highlight=False, soft_wrap=True)
            self._said, self._said_at_s = state, picture.at_s


@dataclass
class LiveJobDisplay:
    """A table that stays in place."""

    live: Live

    def show(self, picture: JobProgress) -> None:
        rows = max(3, self.live.console.height - ROWS_BESIDE_TASKS)
        self.live.update(render(picture, rows))


@contextlib.contextmanager
def display(console: Console, *, silent: bool) -> Iterator[JobDisplay]:
    """The display that suits where the output goes."""
    if silent:
        yield SilentJobDisplay()
    elif not console.is_terminal:
        yield PlainJobDisplay(console)
    else:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            yield LiveJobDisplay(live)


def render(picture: JobProgress, rows: int) -> Group:
    """The live display, its table cut to `rows` tasks."""
    job = picture.job
    bar = ProgressBar(total=max(1, job.trials), completed=job.trials_done, width=40)
    pace = f"{picture.trials_per_s:.1f} trials/s" if picture.trials_per_s else ""
    return Group(Text(picture.headline), bar, Text(pace, style="dim"), task_table(picture.tasks, rows))


def task_table(tasks: Sequence[Task], rows: int | None = None) -> Table:
    """Per task: how often it occurs, trials, best latency, share of the network's time."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("task", "left"), ("times", "right"), ("trials", "right"), ("best", "right")):
        table.add_column(name, justify=justify, no_wrap=name == "times")  # type: ignore[arg-type]
    table.add_column("of network", justify="right")
    shown = by_time(tasks)[:rows]
    for task in shown:
        portion = share(task, tasks)
        table.add_row(
            escape(task.name),
            str(task.weight),
            str(task.trials) if task.covered else "",
            latency_text(task.best_s) if task.covered else f"fallback: {escape(task.reason)}",
            f"{portion:.0%}" if portion is not None else "",
        )
    if len(shown) < len(tasks):
        table.add_row(f"and {len(tasks) - len(shown)} more", style="dim")
    return table
