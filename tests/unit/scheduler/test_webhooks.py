"""Webhooks get messages when a job ends and when it publishes a faster artifact."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from core.webhook import WebhookEvent, check_url, sign
from records import webhooks
from records.webhooks import DELAYS_S, Delivery, Webhook
from scheduler.app import make_app
from scheduler.upkeep import webhook_deliveries
from scheduler.upkeep.webhook_deliveries import Deliverer
from system.outbound import parse_networks
from tests.unit.scheduler.farm import TUNED, UNTUNED, Farm
from tests.unit.scheduler.processes import start
from tests.unit.tunefarm.answering import Reply, Request, answering

SECRET = "whsec_bm9ib2R5IGtub3dzIHRoaXMgc2VjcmV0"
LOOPBACK = parse_networks("127.0.0.0/8")


def hook(farm: Farm, url: str = "http://127.0.0.1:9") -> None:
    with farm.database.begin() as session:
        webhooks.add(session, Webhook("hook", url, tuple(WebhookEvent), SECRET, 1.0))


def messages(farm: Farm) -> list[Delivery]:
    """All messages, oldest first."""
    with farm.database.begin() as session:
        return webhooks.deliveries(session, "hook", 100)[::-1]


def told(farm: Farm) -> list[tuple[str, str]]:
    bodies = [json.loads(one.body) for one in messages(farm)]
    return [(body["type"], body["data"]["job"]) for body in bodies]


def test_only_a_faster_artifact_is_announced(farm: Farm) -> None:
    hook(farm)
    farm.plug_in()
    farm.submit("first")
    farm.finish("first")
    assert told(farm) == [("job.finished", "first"), ("artifact.faster", "first")]
    data = json.loads(messages(farm)[1].body)["data"]
    assert data["artifact_sha256"] == farm.job("first").artifact_sha
    assert (data["artifact_version"], data["tuned_latency_s"], data["untuned_latency_s"]) == (1, 0.01, 0.5)
    farm.latency_s = {UNTUNED: 0.001, TUNED: 0.5}
    farm.submit("second")
    farm.finish("second")
    assert told(farm)[2:] == [("job.finished", "second")]


def test_a_cancelled_job_is_announced(farm: Farm) -> None:
    from records.jobs import jobs

    hook(farm)
    farm.submit("job")
    with farm.database.begin() as session:
        jobs.cancel(session, "job", farm.now)
        jobs.cancel(session, "job", farm.now)
    assert told(farm) == [("job.finished", "job")]


def test_messages_are_signed_and_tried_again_until_they_arrive(farm: Farm) -> None:
    seen: list[Request] = []
    statuses = [500, 302, 200]

    def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply(statuses[len(seen) - 1])

    with answering(answer) as url:
        hook(farm, url)
        with farm.database.begin() as session:
            webhooks.emit(session, WebhookEvent.JOB_FINISHED, {"job": "job"}, farm.now)
        (message,) = messages(farm)
        errors = []
        for delay_s in (*DELAYS_S[:2], 0.0):
            webhook_deliveries.attempt(farm.context, message.id, LOOPBACK)
            webhook_deliveries.attempt(farm.context, message.id, LOOPBACK)  # it isn't due
            errors.append(messages(farm)[0].error)
            farm.now += delay_s
    assert errors == [
        "the receiver answered 500: only 200 to 299 mean success",
        "the receiver answered 302: redirects aren't followed",
        "",
    ]
    assert [one.state for one in messages(farm)] == ["delivered"]
    assert len({request.headers["webhook-id"] for request in seen}) == 1
    for request in seen:
        headers = request.headers
        at = int(headers["webhook-timestamp"])
        assert headers["webhook-signature"] == sign(SECRET, headers["webhook-id"], at, request.content)
    assert [int(request.headers["webhook-timestamp"]) for request in seen] == [1000, 1005, 1035]


def test_private_networks_are_reached_only_if_allowed(farm: Farm) -> None:
    seen: list[Request] = []
    with answering(lambda request: seen.append(request) or Reply()) as url:  # type: ignore[func-returns-value]
        hook(farm, url)
        with farm.database.begin() as session:
            webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, farm.now)
        webhook_deliveries.attempt(farm.context, messages(farm)[0].id, ())
    assert seen == []
    assert "127.0.0.1, which isn't a public address" in messages(farm)[0].error


def test_due_deliveries_are_sent_once(farm: Farm) -> None:
    seen: list[Request] = []
    with answering(lambda request: seen.append(request) or Reply()) as url:  # type: ignore[func-returns-value]
        hook(farm, url)
        with farm.database.begin() as session:
            webhooks.emit(session, WebhookEvent.JOB_FINISHED, {}, farm.now)
        (message,) = messages(farm)
        farm.restart(webhook_allow="127.0.0.0/8")
        farm._sweeper.repair()
        assert ("deliver", str(message.id)) in farm.wakes
        deliverer = Deliverer(farm.context)
        for _ in range(5):
            deliverer.start(message.id)
        deadline = time.monotonic() + 30
        while messages(farm)[0].state != "delivered":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        deliverer.stop()
    assert len(seen) == 1
    farm.now += webhook_deliveries.KEPT_S + 1
    farm._sweeper.repair()
    assert messages(farm) == []


# Spellings of this machine's addresses, with a place for the port.
SPELLINGS = (
    *("127.0.0.1:{}", "127.1:{}", "2130706433:{}", "0x7f000001:{}", "0177.0.0.1:{}", "127.0.0.53:{}"),
    *("0.0.0.0:{}", "0:{}", "[::1]:{}", "[::]:{}", "[::ffff:127.0.0.1]:{}", "[::ffff:7f00:1]:{}"),
    *("[::1%25lo]:{}", "localhost:{}", "LOCALHOST:{}"),
)


@pytest.mark.slow_lane(seconds=4)
def test_a_running_scheduler_reaches_no_private_address_and_waits_for_none(
    farm: Farm, database_file: Path, tmp_path: Path
) -> None:
    """One receiver is allowed, 127.0.0.2. It redirects to 127.0.0.1, which isn't."""
    inside: list[str] = []
    asked: list[str] = []

    def serve(listening: socket.socket, answer: bytes, seen: list[str]) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                seen.append(connection.recv(65536).decode("latin-1").partition("\r")[0])
                connection.sendall(answer)
                while seen is asked and b"Endless" in answer:
                    connection.sendall(b"x" * 65536)

    with (
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as service,
        socket.create_server(("127.0.0.2", 0)) as redirecting,
        socket.create_server(("127.0.0.2", 0)) as endless,
    ):
        port, first, second = (one.getsockname()[1] for one in (service, redirecting, endless))
        moved = f"HTTP/1.1 307 x\r\nLocation: http://127.0.0.1:{port}/moved\r\n\r\n".encode()
        threads = [
            threading.Thread(target=serve, args=arguments)
            for arguments in (
                (service, b"HTTP/1.1 200 OK\r\n\r\n", inside),
                (redirecting, moved, asked),
                (endless, b"HTTP/1.1 200 OK\r\nEndless: ", asked),
            )
        ]
        for thread in threads:
            thread.start()
        urls = [f"http://{spelling.format(port)}/" for spelling in SPELLINGS]
        urls += [f"http://127.0.0.2:{first}/redirect", f"http://127.0.0.2:{second}/endless"]
        with farm.database.begin() as session:
            for number, url in enumerate(urls):
                check_url(url)
                webhooks.add(session, Webhook(f"hook{number}", url, tuple(WebhookEvent), SECRET, 1.0))
            webhooks.emit(session, WebhookEvent.JOB_FINISHED, {"job": "job"}, 1.0)
        make_app(str(tmp_path / "broker"))
        process = start(
            TUNEFARM_BROKER=str(tmp_path / "broker"),
            TUNEFARM_DATABASE_URL=f"sqlite:///{database_file}",
            TUNEFARM_SWEEP_INTERVAL_S="0.5",
            TUNEFARM_WEBHOOK_ALLOW="127.0.0.2",
        )
        errors: list[str] = []
        try:
            deadline = time.monotonic() + 90
            while len(errors) < len(urls):
                assert time.monotonic() < deadline, errors
                time.sleep(0.2)
                with farm.database.begin() as session:
                    sent = [
                        webhooks.deliveries(session, f"hook{number}", 1)[0] for number in range(len(urls))
                    ]
                errors = [one.error for one in sent if one.error]
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            for one in (service, redirecting, endless):
                one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
    assert inside == []
    assert set(asked) == {"POST /redirect HTTP/1.1", "POST /endless HTTP/1.1"}
    assert "redirects aren't followed" in errors[-2]
    assert "did not answer within 10 s" in errors[-1]
    refused = "which isn't a public address: name another host"
    assert [error for error in errors[:-2] if refused not in error and "can't be resolved" not in error] == []


@pytest.mark.slow
def test_the_schedulers_process_delivers(farm: Farm, database_file: Path, tmp_path: Path) -> None:
    seen: list[Request] = []
    with answering(lambda request: seen.append(request) or Reply()) as url:  # type: ignore[func-returns-value]
        hook(farm, url)
        with farm.database.begin() as session:
            webhooks.emit(session, WebhookEvent.JOB_FINISHED, {"job": "job"}, 1.0)
        make_app(str(tmp_path / "broker"))
        process = start(
            TUNEFARM_BROKER=str(tmp_path / "broker"),
            TUNEFARM_DATABASE_URL=f"sqlite:///{database_file}",
            TUNEFARM_SWEEP_INTERVAL_S="0.5",
            TUNEFARM_WEBHOOK_ALLOW="127.0.0.1",
        )
        try:
            deadline = time.monotonic() + 60
            while messages(farm)[0].state != "delivered":
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
    assert (process.returncode, len(seen)) == (0, 1)
    assert "Traceback" not in errors
