"""The conditions under which a stack's monitor fails."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from core.exit_code import ExitCode
from tunefarm.client.client import UnreachableError
from tunefarm.client.values import Worker
from tunefarm.embedded.service import Service, StackMonitor
from tunefarm.embedded.stack import Stack
from tunefarm.errors import StackError

WHY = "its check was ended by SIGILL (illegal instruction)"
WORKER = Worker("board", "probing", None, None, last_seen_at=1.0, trials_done=0, failures=0)
BROKEN = replace(WORKER, health_error=WHY)


@pytest.mark.parametrize(
    ("is_alone", "target", "known"),
    [(True, "native", "newer"), (True, "pi", "pi"), (False, "native", "native")],
)
def test_native_is_the_last_workers_class_beside_a_server_alone(
    is_alone: bool, target: str, known: str
) -> None:
    seen = [
        replace(WORKER, id=str(key), device_class=key, last_seen_at=at_s)
        for key, at_s in (("older", 2.0), ("newer", 3.0), (None, 4.0))
    ]
    client = cast(Any, SimpleNamespace(workers=lambda: seen))
    assert Service(client, alone=is_alone).known_target(target) == known


def test_native_stays_where_no_worker_was_seen() -> None:
    client = cast(Any, SimpleNamespace(workers=lambda: [WORKER]))
    assert Service(client, alone=True).known_target("native") == "native"


class Played:
    """A simulated stack whose server knows `workers`. Each calls again before every check."""

    def __init__(self, *workers: Worker) -> None:
        self.known = list(workers)
        self.looks = 0
        self.is_away = False
        supervisor = SimpleNamespace(log=lambda name: Path("/logs") / f"{name}.log")
        stack = SimpleNamespace(check=lambda: None, supervisor=supervisor)
        self.own = StackMonitor(cast(Stack, stack), cast(Any, self))

    def workers(self) -> list[Worker]:
        if self.is_away:
            raise UnreachableError("nobody answers")
        self.looks += 1
        return [replace(one, last_seen_at=one.last_seen_at + self.looks) for one in self.known]


def test_the_stack_fails_once_its_worker_cannot_measure() -> None:
    stack = Played(WORKER)
    for _ in range(3):
        stack.own.check()
    stack.known = [BROKEN]
    with pytest.raises(StackError) as raised:
        stack.own.check()
    assert str(raised.value) == f"worker board can't measure: {WHY} (see /logs/worker.log)"
    assert raised.value.code is ExitCode.LOCAL


def test_a_health_error_reported_to_an_earlier_stack_is_ignored() -> None:
    stack = Played(BROKEN)
    stack.own.check()
    stack.looks = 0
    stack.own.check()
    with pytest.raises(StackError):
        stack.own.check()


@pytest.mark.parametrize(
    "others",
    [
        [replace(WORKER, id="another")],
        [replace(WORKER, id="another", state="busy")],
    ],
)
def test_the_stack_continues_while_another_worker_may_measure(others: list[Worker]) -> None:
    stack = Played(BROKEN, *others)
    for _ in range(3):
        stack.own.check()


@pytest.mark.parametrize("change", [{"connected": False}, {"role": "build"}])
def test_a_worker_that_is_away_or_only_builds_does_not_count(change: dict[str, Any]) -> None:
    stack = Played(BROKEN, Worker(**asdict(WORKER) | {"id": "another"} | change))
    stack.own.check()
    with pytest.raises(StackError):
        stack.own.check()


def test_a_server_that_is_being_started_again_is_waited_for() -> None:
    stack = Played(WORKER)
    stack.own.check()
    stack.is_away = True
    stack.own.check()
