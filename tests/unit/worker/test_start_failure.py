"""The line for users if no child starts: the cause and the next step."""

from __future__ import annotations

import signal

import pytest

from core.worker import MAX_HEALTH_ERROR_CHARS
from worker.runner.child_process import ChildDied
from worker.runner.start_failure import died, start_failure, timed_out

MISSING = """\
Traceback (most recent call last):
  File "/opt/tunefarm/worker/runner/child.py", line 128, in main
    runner = factory(given.threads, given.without)
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
    ("code", "stderr", "line"),
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
def test_the_line_names_the_cause_and_the_next_step(code: int, stderr: str, line: str) -> None:
    assert died(ChildDied("the child ended", code), stderr).line == line


def test_the_exception_of_a_truncated_traceback_is_found() -> None:
    _, _, tail = MISSING.partition("\n")
    assert died(ChildDied("", 1), tail) == died(ChildDied("", 1), MISSING)


def test_silent_and_slow_children_have_different_messages() -> None:
    assert died(ChildDied("the child stopped answering"), "").line == (
        "its check failed because the child stopped answering"
    )
    assert timed_out(120.0).line == (
        "its check took longer than 120 s: if the device is only slow, allow more with "
        "TUNEFARM_WORKER_START_TIMEOUT_S"
    )


@pytest.mark.parametrize("code", [-signal.SIGILL, 1, 7])
def test_the_failure_is_one_line_of_limited_length(code: int) -> None:
    stderr = "Traceback (most recent call last):\nImportError: \x1b[31m\0" + "no\tlibrary " * 1000
    line = died(ChildDied("", code), stderr).line
    assert line.isprintable()
    assert len(line) <= MAX_HEALTH_ERROR_CHARS
    assert start_failure("x", "y" * 1000, "z" * 150).line.endswith("...: " + "z" * 150)
