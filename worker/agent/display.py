"""Shows what the worker does: one live line on a terminal, lines in the log anywhere else."""

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

_log = logging.getLogger(__name__)


@dataclass
class LeaseProgress:
    """A lease on the way: what was measured or built of it so far."""

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
        self.outcomes[measurement.outcome] += 1
        if measurement.run_secs:
            self.best_s = min(filter(None, (self.best_s, statistics.median(measurement.run_secs))))

    def __str__(self) -> str:
        if self.lease.module_runs:
            kinds = " and the ".join(run.kind for run in self.lease.module_runs)
            return f"{self.name}: times the {kinds} model end to end"
        best = "" if self.best_s is None else f", best so far {latency_text(self.best_s)}"
        does = "built" if self.lease.build else "measured"
        return f"{self.name}: {self.done} of {self.size} candidates {does}{best}"

    def result(self) -> str:
        """One line once it is over."""
        counts = [f"{count} {outcome.value.replace('_', ' ')}" for outcome, count in self.outcomes.items()]
        best = [] if self.best_s is None else [f"best {latency_text(self.best_s)}"]
        return f"{self.name} is done: {', '.join(sorted(counts) + best)}"


class Display(Protocol):
    """Is told what the worker does at the moment, in one line; and of every candidate that is settled."""

    def does(self, line: str) -> None: ...

    def measured(self, work: LeaseProgress) -> None: ...


class LogDisplay:
    """A line in the log whenever the worker does something else."""

    def does(self, line: str) -> None:
        _log.info("%s", line)

    def measured(self, work: LeaseProgress) -> None:
        """Sixteen lines a lease would be too many."""


@dataclass
class LiveDisplay:
    """As the log, with a last line that stays in place and tells how far the lease is."""

    live: Live
    clock: Callable[[], float] = time.monotonic
    _began_s: float = 0.0
    _total: int = 0

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    def does(self, line: str) -> None:
        _log.info("%s", line)
        self._show(line)

    def measured(self, work: LeaseProgress) -> None:
        self._total += 1
        self._show(str(work))

    def _show(self, line: str) -> None:
        minutes = max(self.clock() - self._began_s, 1.0) / 60
        pace = f" · {self._total} in all, {self._total / minutes:.1f} a minute" if self._total else ""
        self.live.update(Text(f"{line}{pace}", overflow="ellipsis", no_wrap=True), refresh=True)


@contextlib.contextmanager
def display(console: Console) -> Iterator[Display]:
    """The display that suits where standard error goes; the log goes there too."""
    if not console.is_terminal:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
        yield LogDisplay()
        return
    handler = RichHandler(console=console, show_path=False, highlighter=NullHighlighter())
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[handler])
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveDisplay(live)
