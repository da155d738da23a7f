"""Rate limits, the table of scopes, and the bounds of the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.tokens import Scope
from records.access import AuditEntry, AuditLine
from records.storage.database import Database
from server.access import audit as access_audit
from server.access.audit import DAILY_S, MAX_REFUSED, AuditLog
from server.access.interceptor import peer_address
from server.access.scopes import UNKNOWN, operation_of, procedure_scope
from server.rate_limits import RateLimiter, network_of, parse_limit
from tests.services import sqlite
from tests.unit.conftest import Clock


@pytest.mark.parametrize("text", ["many", "600/fortnight", "-1/minute", "/minute", "on"])
def test_an_invalid_limit_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="600/minute"):
        parse_limit(text)


@pytest.mark.parametrize("text", ["", "off"])
def test_a_limit_may_be_off(text: str) -> None:
    limit = RateLimiter(text)
    assert asyncio.run(limit.hit("me")) is None


def test_clients_are_counted_each_for_itself() -> None:
    async def hits() -> list[bool]:
        limit = RateLimiter("2/hour")
        waits = [await limit.hit(client) for client in ("me", "me", "you", "me")]
        waits += [await limit.test("me"), await limit.test("you")]
        assert all(0 < wait <= 3600 for wait in waits if wait is not None)
        return [wait is not None for wait in waits]

    assert asyncio.run(hits()) == [False, False, False, True, True, False]


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
def test_addresses_of_one_network_count_together(address: str, counts_as: str) -> None:
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
def test_addresses_are_read_from_what_grpc_calls_peers(peer: str, address: str) -> None:
    assert peer_address(peer) == address


@pytest.mark.parametrize(
    ("method", "path", "route", "subject", "scope", "is_write"),
    [
        ("GET", "/v1/jobs/j1", "GET /v1/jobs/{job_id}", "j1", Scope.READ, False),
        ("HEAD", "/v1/jobs", "GET /v1/jobs", "", Scope.READ, False),
        ("POST", "/v1/jobs/j1:cancel", "POST /v1/jobs/{job_id}:cancel", "j1", Scope.SUBMIT, True),
        ("POST", "/v1/schedules:query", "POST /v1/schedules:query", "", Scope.READ, False),
        ("GET", "/v1/audit", "GET /v1/audit", "", Scope.ADMIN, False),
        ("DELETE", "/v1/jobs/j1", "DELETE /v1/jobs/{job_id}", "j1", Scope.ADMIN, True),
        ("DELETE", "/v1/tokens/t1", "DELETE /v1/tokens/{token_id}", "t1", Scope.ADMIN, True),
        ("DELETE", "/v1/jobs", UNKNOWN, "", Scope.ADMIN, True),
        ("GET", "/v1/jobs/", UNKNOWN, "", Scope.ADMIN, False),
        ("GET", "/v1/jobs/a/b/c", UNKNOWN, "", Scope.ADMIN, False),
    ],
)
def test_the_table_of_routes(
    method: str, path: str, route: str, subject: str, scope: Scope, is_write: bool
) -> None:
    operation = operation_of(method, path)
    found = (operation.route, operation.subject, operation.scope, operation.is_write)
    assert found == (route, subject, scope, is_write)


def test_procedures_of_another_service_need_an_administrator() -> None:
    assert procedure_scope("/tunefarm.v1.Fleet/Synchronize") is Scope.WORKER
    assert procedure_scope("/tunefarm.v2.Fleet/Synchronize") is Scope.ADMIN


def act(number: int = 0, outcome: str = "401 token-needed") -> AuditEntry:
    return AuditEntry("nobody", f"GET /v1/{number}", "", outcome, "10.0.0.7")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(sqlite(tmp_path / "audit.db"))
    yield database
    database.close()


@pytest.fixture
def log(database: Database, clock: Clock) -> AuditLog:
    return AuditLog(database, clock, keep_s=100.0)


def lines(log: AuditLog) -> list[AuditLine]:
    return log.page(1000, None)


def test_refusals_fill_few_lines_however_many_they_are(log: AuditLog) -> None:
    for number in range(500):
        log.count_refused(act(number))
    asyncio.run(log.flush())
    kept = lines(log)
    assert len(kept) == MAX_REFUSED + 1
    assert sum(line.times for line in kept) == 500
    asyncio.run(log.flush())
    assert len(lines(log)) == MAX_REFUSED + 1


def test_long_texts_are_cut_in_the_audit_log(log: AuditLog) -> None:
    asyncio.run(log.write(AuditEntry("t1", "POST /v1/jobs", "x" * 100_000, "202", "10.0.0.7")))
    assert len(lines(log)[0].act.subject) == 200


def test_old_lines_are_deleted(log: AuditLog, clock: Clock) -> None:
    asyncio.run(log.write(act(1)))
    clock.now += 101
    asyncio.run(log.write(act(2)))
    asyncio.run(log.flush())
    assert [line.act for line in lines(log)] == [act(2)]


def test_equal_daily_acts_are_a_line_a_day(log: AuditLog, clock: Clock) -> None:
    for later_s in (0.0, 5.0, DAILY_S):
        clock.now += later_s
        asyncio.run(log.write_daily(act(1, "OK")))
    assert [line.at for line in lines(log)] == [5.0 + DAILY_S, 0.0]


def test_a_log_that_cannot_be_written_keeps_what_was_refused(
    database: Database, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(Database(f"sqlite:///{tmp_path}/none/audit.db"), clock, keep_s=100.0)
    log.count_refused(act())
    asyncio.run(log.flush())
    assert "the audit log can't be written" in caplog.text
    log._database = database
    log.count_refused(act())
    asyncio.run(log.flush())
    assert [(line.act, line.times) for line in lines(log)] == [(act(), 2)]


def test_the_audit_log_is_flushed_regularly_and_at_the_end(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_audit, "FLUSH_S", 0.01)

    async def run() -> None:
        stopping = asyncio.Event()
        flushing = asyncio.create_task(log.flush_regularly(stopping))
        log.count_refused(act(1))
        async with asyncio.timeout(10):
            while not await asyncio.to_thread(lines, log):
                await asyncio.sleep(0.01)
        log.count_refused(act(2))
        stopping.set()
        await flushing

    asyncio.run(run())
    assert [line.act for line in lines(log)] == [act(2), act(1)]
