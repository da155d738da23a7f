"""Show the worker's activity: one live line on a terminal, log lines elsewhere."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.live import Live
from rich.logging import RichHandler
from rich.text import Text

from core.durations import latency_text
from core.lease import Lease
from core.measurement import Built, Measurement, Outcome
from system import logs

_log = logging.getLogger(__name__)


@dataclass
class LeaseProgress:
    """The lease in work, with the outcomes and the best latency so far."""

    lease: Lease
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    best_s: float | None = None

    @property
    def size(self) -> int:
        return len(self.lease.candidates) or len(self.lease.module_runs)

    @property
    def done(self) -> int:
        return self.outcomes.total()

    @property
    def name(self) -> str:
        return f"lease {self.lease.id.id[:8]}"

    def note(self, measurement: Measurement | Built) -> None:
        """Count a result."""
        self.outcomes[measurement.outcome] += 1
        if measurement.run_s:
            self.best_s = min(filter(None, (self.best_s, statistics.median(measurement.run_s))))

    def __str__(self) -> str:
        if self.lease.module_runs:
            kinds = " and the ".join(run.kind for run in self.lease.module_runs)
            return f"{self.name}: times the {kinds} model end to end"
        best = "" if self.best_s is None else f", best so far {latency_text(self.best_s)}"
        does = "built" if self.lease.build else "measured"
        return f"{self.name}: {self.done} of {self.size} candidates {does}{best}"

    def result(self) -> str:
        """Return a summary of the finished lease, in one line."""
        counts = [f"{count} {outcome.value.replace('_', ' ')}" for outcome, count in self.outcomes.items()]
        best = [] if self.best_s is None else [f"best {latency_text(self.best_s)}"]
        return f"{self.name} is done: {', '.join(sorted(counts) + best)}"


class Display(Protocol):
    """Shows the worker's activity to a user."""

    def show(self, line: str) -> None:
        """Show the worker's current activity."""
        ...

    def show_progress(self, progress: LeaseProgress) -> None:
        """Show that one more candidate has a result."""
        ...


class LogDisplay:
    """Logs a line whenever the worker's activity changes."""

    def show(self, line: str) -> None:
        _log.info("%s", line)

    def show_progress(self, progress: LeaseProgress) -> None:
        """Log nothing, because one line for each candidate would be too many."""


@dataclass
class LiveDisplay:
    """Shows log lines, and below them a live line with the progress of the lease."""

    live: Live
    clock: Callable[[], float] = time.monotonic
    _began_s: float = 0.0
    _total: int = 0

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def show(self, line: str) -> None:
        _log.info("%s", line)
        self._update(line)

    def show_progress(self, progress: LeaseProgress) -> None:
        self._total += 1
        self._update(str(progress))

    def _update(self, line: str) -> None:
        minutes = max(self.clock() - self._began_s, 1.0) / 60
        pace = f" · {self._total} in all, {self._total / minutes:.1f} a minute" if self._total else ""
        self.live.update(Text(f"{line}{pace}", overflow="ellipsis", no_wrap=True), refresh=True)


@contextlib.contextmanager
def display(console: Console) -> Iterator[Display]:
    """Return a live display for a terminal, otherwise one that logs. Direct the log to the console, too."""
    if not console.is_terminal:
        logs.configure(logging.INFO)
        yield LogDisplay()
        return
    handler = RichHandler(console=console, show_path=False, highlighter=NullHighlighter())
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[handler])
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveDisplay(live)
