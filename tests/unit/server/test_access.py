"""Rate limits, the table of scopes, and the bounds of the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.tokens import Scope
from records.access import AuditEntry, AuditLine
from records.storage.database import Database
from server import rate_limits
from server.access import audit as access_audit
from server.access.audit import DAILY_S, MAX_REFUSED, AuditLog
from server.access.interceptor import peer_address
from server.access.scopes import UNKNOWN, operation_of, procedure_scope
from server.rate_limits import Limit, RateLimiter, network_of, parse_limit
from tests.services import sqlite
from tests.unit.conftest import Clock


@pytest.mark.parametrize(
    "text", ["many", "600/fortnight", "-1/minute", "/minute", "on", "1/0 days", "1.5/day"]
)
def test_an_invalid_limit_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="600/minute"):
        parse_limit(text)


@pytest.mark.parametrize("text", ["", "off"])
def test_rate_limits_can_be_disabled(text: str) -> None:
    limit = RateLimiter(text)
    assert limit.hit("me") is None


def test_each_client_has_its_own_rate_limit(clock: Clock) -> None:
    limit = RateLimiter("2/hour", clock)
    assert [limit.hit(client) for client in ("me", "me", "you", "me")] == [None, None, None, 3600]
    clock.now += 1800.0
    assert (limit.test("me"), limit.test("you")) == (1800, None)
    clock.now += 1800.0
    assert [limit.hit("me") for _ in range(3)] == [None, None, 3600]


@pytest.mark.parametrize("set_s", [1e6, -1e6])
def test_clock_changes_do_not_affect_rate_limits(monkeypatch: pytest.MonkeyPatch, set_s: float) -> None:
    limit = RateLimiter("1/minute")
    assert limit.hit("me") is None
    clock_s = time.time() + set_s
    monkeypatch.setattr(time, "time", lambda: clock_s)
    wait_s = limit.hit("me")
    assert wait_s is not None
    assert wait_s <= 60


@pytest.mark.parametrize(
    ("text", "calls", "window_s"),
    [("600/minute", 600, 60), ("10 per second", 10, 1), ("5/2 hours", 5, 7200), ("1 PER Day", 1, 86400)],
)
def test_rate_limits_are_parsed_from_text(text: str, calls: int, window_s: int) -> None:
    assert parse_limit(text) == Limit(calls, window_s)


def test_many_clients_take_little_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_CLIENTS", 2)
    limit = RateLimiter("1/hour", clock)
    assert [limit.hit(client) for client in ("first", "second", "third")] == [None] * 3
    assert (limit.test("third"), limit.test("first")) == (3600, None)


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("unknown", "unknown"),
    ],
)
def test_addresses_of_one_network_share_a_rate_limit(address: str, counts_as: str) -> None:
    assert network_of(address) == counts_as


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.7:4711", "10.0.0.7"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[2001:db8::1]:4711", "2001:db8::1"),
        ("unix:", "unknown"),
        ("", "unknown"),
    ],
)
def test_addresses_are_read_from_grpcs_peers(peer: str, address: str) -> None:
    assert peer_address(peer) == address


@pytest.mark.parametrize(
    ("method", "path", "route", "subject", "scope", "is_write"),
    [
        ("GET", "/v1/jobs/j1", "GET /v1/jobs/{job_id}", "j1", Scope.READ, False),
        ("HEAD", "/v1/jobs", "GET /v1/jobs", "", Scope.READ, False),
        ("POST", "/v1/jobs/j1:cancel", "POST /v1/jobs/{job_id}:cancel", "j1", Scope.SUBMIT, True),
        ("POST", "/v1/schedules:query", "POST /v1/schedules:query", "", Scope.READ, False),
        ("GET", "/v1/audit", "GET /v1/audit", "", Scope.ADMIN, False),
        ("GET", "/v1/session", "GET /v1/session", "", None, False),
        ("DELETE", "/v1/jobs/j1", "DELETE /v1/jobs/{job_id}", "j1", Scope.ADMIN, True),
        ("DELETE", "/v1/tokens/t1", "DELETE /v1/tokens/{token_id}", "t1", Scope.ADMIN, True),
        ("DELETE", "/v1/jobs", UNKNOWN, "", Scope.ADMIN, True),
        ("GET", "/v1/jobs/", UNKNOWN, "", Scope.ADMIN, False),
        ("GET", "/v1/jobs/a/b/c", UNKNOWN, "", Scope.ADMIN, False),
    ],
)
def test_each_route_has_its_subject_scope_and_kind(
    method: str, path: str, route: str, subject: str, scope: Scope | None, is_write: bool
) -> None:
    operation = operation_of(method, path)
    found = (operation.route, operation.subject, operation.scope, operation.is_write)
    assert found == (route, subject, scope, is_write)


def test_procedures_of_another_service_need_an_administrator() -> None:
    assert procedure_scope("/tunefarm.v1.Fleet/Synchronize") is Scope.WORKER
    assert procedure_scope("/tunefarm.v2.Fleet/Synchronize") is Scope.ADMIN


def entry(number: int = 0, outcome: str = "401 token-needed") -> AuditEntry:
    return AuditEntry("nobody", f"GET /v1/{number}", "", outcome, "10.0.0.7")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(sqlite(tmp_path / "audit.db"))
    yield database
    database.close()


@pytest.fixture
def log(database: Database, clock: Clock) -> AuditLog:
    return AuditLog(database, clock)


def lines(log: AuditLog) -> list[AuditLine]:
    return log.page(1000, None)


def test_repeated_refusals_share_audit_lines(log: AuditLog) -> None:
    for number in range(500):
        log.count_refused(entry(number))
    asyncio.run(log.flush())
    kept = lines(log)
    assert len(kept) == MAX_REFUSED + 1
    assert sum(line.times for line in kept) == 500
    asyncio.run(log.flush())
    assert len(lines(log)) == MAX_REFUSED + 1


def test_long_texts_are_cut_in_the_audit_log(log: AuditLog) -> None:
    asyncio.run(log.write(AuditEntry("t1", "POST /v1/jobs", "x" * 100_000, "202", "10.0.0.7")))
    assert len(lines(log)[0].entry.subject) == 200


def test_repeated_acts_are_one_audit_line_a_day(database: Database, clock: Clock) -> None:
    """A day by a timer: after the clock was set back, the next line doesn't wait for the old time."""
    log = AuditLog(database, lambda: 1000.0 - clock.now, clock)
    for later_s in (0.0, 5.0, DAILY_S):
        clock.now += later_s
        asyncio.run(log.write_daily(entry(1, "OK")))
    assert [line.at for line in lines(log)] == [995.0 - DAILY_S, 1000.0]


def test_refusals_are_kept_until_the_audit_log_is_writable(
    database: Database, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(Database(f"sqlite:///{tmp_path}/none/audit.db"), clock)
    log.count_refused(entry())
    asyncio.run(log.flush())
    assert "the audit log can't be written" in caplog.text
    log._database = database
    log.count_refused(entry())
    asyncio.run(log.flush())
    assert [(line.entry, line.times) for line in lines(log)] == [(entry(), 2)]


def test_the_audit_log_is_flushed_regularly_and_at_the_end(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_audit, "FLUSH_S", 0.01)

    async def run() -> None:
        stopping = asyncio.Event()
        flushing = asyncio.create_task(log.flush_regularly(stopping))
        log.count_refused(entry(1))
        async with asyncio.timeout(10):
            while not await asyncio.to_thread(lines, log):
                await asyncio.sleep(0.01)
        log.count_refused(entry(2))
        stopping.set()
        await flushing

    asyncio.run(run())
    assert [line.entry for line in lines(log)] == [entry(2), entry(1)]
