"""What people read when a device can't measure, and how often it is checked again."""

from __future__ import annotations

import logging
import signal

import pytest

from core.worker import MAX_TROUBLE_CHARS
from worker.agent.failed_checks import ChildStartError, End, FailedChecks, died, ended, timed_out
from worker.sandbox.child_process import ChildDied

MISSING = """\
Traceback (most recent call last):
  File "/opt/tunefarm/worker/child.py", line 128, in main
    Child(_factory(given.runner)(given.threads), requests, replies, gaps, given.build).serve()
ModuleNotFoundError: No module named 'tvm'
"""
TWO = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
tvm.error.InternalError: Check failed: (found) is false
no such intrinsic
"""


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        (
            -signal.SIGILL,
            "Fatal Python error: Illegal instruction",
            "its check was ended by SIGILL (illegal instruction): leave out what the processor lacks with "
            "--features or TUNEFARM_WORKER_FEATURES, and report it",
        ),
        (-signal.SIGSEGV, "", "its check was ended by SIGSEGV (segmentation fault)"),
        (-250, "", "its check was ended by signal 250"),
        (
            1,
            MISSING,
            "its check ended with ModuleNotFoundError: No module named 'tvm': install tunefarm[worker] again",
        ),
        (1, TWO, "its check ended with tvm.error.InternalError: Check failed: (found) is false"),
        (1, "there is no user 'x' here\n", "its check exited with code 1: there is no user 'x' here"),
        (7, "", "its check exited with code 7"),
        (0, "\n \n", "its check exited with code 0"),
    ],
)
def test_the_line_names_the_cause_and_the_next_step(code: int, words: str, line: str) -> None:
    assert died(ChildDied("the child ended", code), words).line == line


def test_of_a_traceback_that_was_cut_the_exception_is_found_all_the_same() -> None:
    _, _, tail = MISSING.partition("\n")
    assert died(ChildDied("", 1), tail) == died(ChildDied("", 1), MISSING)


def test_a_child_that_fell_silent_and_one_that_takes_too_long_are_named() -> None:
    assert died(ChildDied("the child stopped answering"), "").line == (
        "its check failed because the child stopped answering"
    )
    assert timed_out(120.0).line == (
        "its check took longer than 120 s: if the device is only slow, allow more with "
        "TUNEFARM_WORKER_START_TIMEOUT_S"
    )


@pytest.mark.parametrize("code", [-signal.SIGILL, 1, 7])
def test_the_line_is_one_and_fits_however_much_the_child_wrote(code: int) -> None:
    words = "Traceback (most recent call last):\nImportError: \x1b[31m\0" + "no\tlibrary " * 1000
    line = died(ChildDied("", code), words).line
    assert line.isprintable()
    assert len(line) <= MAX_TROUBLE_CHARS
    assert ended("x", "y" * 1000, "z" * 150).line.endswith("...: " + "z" * 150)


def failing(checks: FailedChecks, *kinds: str) -> list[float]:
    """The pauses after checks that fail so."""
    pauses = []
    for number, kind in enumerate(kinds):
        checks.failed(ChildStartError(End(kind, f"its check failed by {kind}"), f"words {number}"))
        pauses.append(checks.pause_s)
    return pauses


def test_three_that_fail_alike_are_told_and_checked_seldom() -> None:
    checks = FailedChecks(600.0)
    assert failing(checks, "SIGILL", "SIGILL") == [1.0, 2.0]
    assert checks.trouble == ""
    assert failing(checks, "SIGILL", "SIGILL") == [600.0, 600.0]
    assert checks.trouble == "its check failed by SIGILL"


def test_one_hiccup_is_not_told() -> None:
    checks = FailedChecks(600.0)
    assert failing(checks, "SIGILL", "SIGKILL", "SIGILL", "SIGILL") == [1.0, 2.0, 4.0, 8.0]
    assert checks.trouble == ""
    checks.passed()
    assert failing(checks, "SIGILL", "SIGILL") == [1.0, 2.0]
    assert checks.trouble == ""


def test_a_device_that_fails_in_ever_other_ways_is_in_trouble_too() -> None:
    checks = FailedChecks(600.0)
    assert failing(checks, *"ababab")[-2:] == [16.0, 600.0]
    assert checks.trouble == "its check failed by b"
    assert failing(checks, "c") == [600.0]
    assert checks.trouble == "its check failed by c"


def test_attempts_1_2_4_and_8_are_logged_and_what_the_child_wrote_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="worker"):
        failing(FailedChecks(600.0), *["SIGILL"] * 15)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition("(")[2].split()[0] for line in said] == ["1", "2", "4", "8"]
    assert ["words" in line for line in said] == [True, False, False, False]
    assert said[2] == (
        "this device can't measure yet (4 in a row, the next check is in 600 s): its check failed by SIGILL"
    )


def test_another_end_is_logged_whole_when_it_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    failing(FailedChecks(600.0), "a", "a", "b", "a", "b")
    said = [record.getMessage() for record in caplog.records]
    assert [line.splitlines()[1:] for line in said] == [["words 0"], [], ["words 2"], []]
