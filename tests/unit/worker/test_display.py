from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from core.lease import Candidate, Lease, LeaseId, Limits, ModuleRun
from core.measurement import Built, Measurement, Outcome
from worker.agent.display import LeaseProgress, LogDisplay, display

LEASE = Lease(
    LeaseId("0123456789ab", 1), "{}", Limits(), 30.0, tuple(Candidate(n, "w", "[]") for n in range(3))
)
FAST, SLOW = Measurement(Outcome.OK, (1.5e-3,)), Measurement(Outcome.OK, (0.25,))
FAILED = Measurement(Outcome.BUILD_ERROR, error="no")


@contextlib.contextmanager
def own_logging() -> Iterator[None]:
    """Set up logging as in a separate process, without pytest's handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:], root.level = handlers, level


def test_a_lease_is_shown_in_one_line() -> None:
    work = LeaseProgress(LEASE)
    assert str(work) == "lease 01234567: 0 of 3 candidates measured"
    for measurement in (SLOW, FAILED, FAST):
        work.note(measurement)
    assert str(work) == "lease 01234567: 3 of 3 candidates measured, best so far 1.5 ms"
    assert work.result() == "lease 01234567 is done: 1 build error, 2 ok, best 1.5 ms"


def test_a_builders_lease_is_shown_in_one_line() -> None:
    work = LeaseProgress(replace(LEASE, build=True))
    work.note(Built("ab" * 32, 0.5))
    work.note(FAILED)
    assert str(work) == "lease 01234567: 2 of 3 candidates built"
    assert work.result() == "lease 01234567 is done: 1 build error, 1 ok"


def test_module_runs_are_shown_in_one_line() -> None:
    runs = (ModuleRun(1, "untuned", "ab"), ModuleRun(2, "tuned", "cd"))
    work = LeaseProgress(Lease(LEASE.id, "{}", Limits(), 30.0, module_runs=runs))
    assert str(work) == "lease 01234567: times the untuned and the tuned model end to end"
    assert work.size == 2
    work.note(SLOW)
    assert work.result() == "lease 01234567 is done: 1 ok, best 250 ms"


def test_the_log_has_a_line_for_each_change_and_none_for_a_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with own_logging(), display(Console(file=written, force_terminal=False)) as shown:
        assert isinstance(shown, LogDisplay)
        shown.show("probing")
        shown.show_progress(LeaseProgress(LEASE))
        shown.show("ready [red]as pi4")
    lines = written.getvalue().splitlines()
    assert [line.split("display: ")[1] for line in lines] == ["probing", "ready [red]as pi4"]


def test_a_terminal_shows_the_leases_progress_in_one_line() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=100, color_system=None)
    with own_logging(), display(console) as shown:
        work = LeaseProgress(LEASE)
        shown.show(str(work))
        work.note(FAST)
        shown.show_progress(work)
    text = written.getvalue()
    assert "1 of 3 candidates measured, best so far 1.5 ms · 1 in all" in text
    assert text.count("0 of 3 candidates measured") == 2, "in the log, and as the last line"
