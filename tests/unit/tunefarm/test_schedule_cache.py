"""What is asked for is kept, and answers while the service is away."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

import httpx
import pytest

from tunefarm.client.client import Client, UnreachableError
from tunefarm.client.schedule_cache import ScheduleCache
from tunefarm.client.values import Schedule


class Service:
    """Knows schedules; the ETag is how often they have changed."""

    def __init__(self, *known: str) -> None:
        self.known = {name: schedule(name) for name in known}
        self.changes = 0
        self.is_away = False
        self.statuses: list[int] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("refused")
        tag = f'"{self.changes}"'
        self.statuses.append(304 if request.headers.get("if-none-match") == tag else 200)
        workloads = json.loads(request.content)["workloads"]
        found = {name: asdict(self.known[name]) if name in self.known else None for name in workloads}
        return httpx.Response(self.statuses[-1], json={"schedules": found}, headers={"ETag": tag})

    def cache(self, folder: Path, target: str = "rpi5") -> ScheduleCache:
        client = Client("http://farm", transport=httpx.MockTransport(self), sleep=lambda _: None)
        return ScheduleCache(client, target, folder)


def schedule(name: str, latency_s: float = 1e-3) -> Schedule:
    return Schedule(name, "cafe", "[[],[]]", latency_s, (latency_s,), "{}")


def test_what_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    service = Service("a")
    found = [service.cache(tmp_path).best_of(["a", "b"]) for _ in range(2)]
    assert found == [{"a": schedule("a")}] * 2
    service.known["b"], service.changes = schedule("b"), 1
    assert service.cache(tmp_path).best_of(["b", "a"]) == {"a": schedule("a"), "b": schedule("b")}
    assert service.statuses == [200, 304, 200]


def test_while_the_service_is_away_the_last_answers_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service("a", "c")
    cache = service.cache(tmp_path)
    cache.best_of(["a", "b"])
    service.known["a"], service.changes = schedule("a", 5e-4), 1
    cache.best_of(["a"])
    service.is_away = True
    with caplog.at_level(logging.WARNING):
        assert service.cache(tmp_path).best_of(["a", "b", "c"]) == {"a": schedule("a", 5e-4)}
    assert "2 of 3 workloads are as they were known before" in caplog.text


def test_nothing_known_is_an_error_and_other_targets_are_others(tmp_path: Path) -> None:
    service = Service("a")
    service.cache(tmp_path).best_of(["a"])
    service.is_away = True
    for target, names in (("rpi5", ["b"]), ("rpi4", ["a"])):
        with pytest.raises(UnreachableError, match="no tunefarm service answers at http://farm"):
            service.cache(tmp_path, target).best_of(names)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "schedules.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(OSError, match="delete the file"):
        Service().cache(tmp_path)
