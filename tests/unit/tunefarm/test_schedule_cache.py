"""Answers are cached, and used while the service is unavailable."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.tunefarm.answering import BROKEN, Reply, Request, answering, json_reply
from tunefarm.client.client import Client, UnreachableError
from tunefarm.client.schedule_cache import ScheduleCache
from tunefarm.client.values import Schedule


class Service:
    """A service with schedules. Its ETag counts their changes."""

    def __init__(self) -> None:
        self.known: dict[str, Schedule] = {}
        self.changes = 0
        self.is_away = False
        self.statuses: list[int] = []
        self.url = ""

    def __call__(self, request: Request) -> Reply:
        if self.is_away:
            return BROKEN
        tag = f'"{self.changes}"'
        self.statuses.append(304 if request.headers.get("If-None-Match") == tag else 200)
        if self.statuses[-1] == 304:
            return Reply(304)
        workloads = json.loads(request.content)["workloads"]
        found = {name: asdict(self.known[name]) if name in self.known else None for name in workloads}
        return json_reply({"schedules": found}, headers={"ETag": tag})

    def knows(self, *names: str) -> None:
        self.known |= {name: schedule(name) for name in names}

    def cache(self, folder: Path, target: str = "rpi5") -> ScheduleCache:
        return ScheduleCache(Client(self.url, sleep=lambda _: None), target, folder)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    with answering(made) as made.url:
        yield made


def schedule(name: str, latency_s: float = 1e-3) -> Schedule:
    return Schedule(name, "cafe", "[[],[]]", latency_s, (latency_s,), "{}")


def test_unchanged_schedules_are_not_sent_again(service: Service, tmp_path: Path) -> None:
    service.knows("a")
    found = [service.cache(tmp_path).best_of(["a", "b"]) for _ in range(2)]
    assert found == [{"a": schedule("a")}] * 2
    service.known["b"], service.changes = schedule("b"), 1
    assert service.cache(tmp_path).best_of(["b", "a"]) == {"a": schedule("a"), "b": schedule("b")}
    assert service.statuses == [200, 304, 200]


def test_while_the_service_is_away_the_last_answers_hold(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.knows("a", "c")
    cache = service.cache(tmp_path)
    cache.best_of(["a", "b"])
    service.known["a"], service.changes = schedule("a", 5e-4), 1
    cache.best_of(["a"])
    service.is_away = True
    with caplog.at_level(logging.WARNING):
        assert service.cache(tmp_path).best_of(["a", "b", "c"]) == {"a": schedule("a", 5e-4)}
    assert "2 of 3 workloads have a schedule from the cache" in caplog.text


def test_without_cached_schedules_a_failed_look_up_is_an_error(service: Service, tmp_path: Path) -> None:
    service.knows("a")
    service.cache(tmp_path).best_of(["a"])
    service.is_away = True
    for target, names in (("rpi5", ["b"]), ("rpi4", ["a"])):
        with pytest.raises(UnreachableError, match="no tunefarm service answers at http://127"):
            service.cache(tmp_path, target).best_of(names)


def _overwritten(file: Path) -> None:
    file.write_bytes(b"no database" * 100)


def _executed(*statements: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with contextlib.closing(sqlite3.connect(file)) as database, database:
            for statement in statements:
                database.execute(statement)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        _overwritten,
        _executed("DROP TABLE answers", "CREATE TABLE answers (something)"),
        _executed("UPDATE schedules SET schedule = '{'"),
        _executed('UPDATE schedules SET schedule = \'{"latency_s": "soon"}\''),
        _executed("UPDATE schedules SET schedule = x'ff00'"),
    ],
)
def test_a_damaged_file_is_named(service: Service, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    service.knows("a")
    service.cache(tmp_path).best_of(["a"])
    damage(tmp_path / "schedules.sqlite")
    with pytest.raises(OSError, match="delete the file"):
        service.cache(tmp_path).best_of(["a"])
