"""Other processes send wake-ups, whether the broker is available or not."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

from scheduler import app as scheduler_app
from scheduler.app import Waker, make_app


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    return tmp_path / "broker"


def test_a_wake_up_is_one_message_that_names_the_step_and_the_job(broker: Path) -> None:
    Waker(make_app(str(broker)))("round", "job 1")
    wait_until(lambda: bool(list(broker.glob("*.msg"))))
    [path] = broker.glob("*.msg")
    message = json.loads(path.read_text())
    assert message["headers"]["task"] == "scheduler.round"
    assert message["content-type"] == "application/json"
    arguments, *_ = json.loads(base64.b64decode(message["body"]))
    assert arguments == ["job 1"]
    assert list((broker / "control").iterdir()) == []


def test_the_same_wake_ups_become_one_message(broker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str]] = []
    is_sending, may_continue = threading.Event(), threading.Event()

    def send(_app: Celery, step: str, job_id: str) -> None:
        sent.append((step, job_id))
        is_sending.set()
        may_continue.wait(20)

    monkeypatch.setattr(scheduler_app, "send", send)
    wake = Waker(make_app(str(broker)))
    wake("round", "job 1")
    assert is_sending.wait(20)
    for _ in range(100):
        wake("round", "job 1")
        wake("round", "job 2")
    wake("publish", "job 1")
    may_continue.set()
    wait_until(lambda: len(sent) >= 4)
    # The first message was on its way when job 1 was woken again, so it is sent again.
    assert sent == [("round", "job 1"), ("round", "job 1"), ("round", "job 2"), ("publish", "job 1")]


def test_a_broker_that_is_away_does_not_disturb_the_caller(
    broker: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wake = Waker(make_app(str(broker)))
    (broker / "control").rmdir()
    broker.rmdir()
    wake("round", "job 1")
    wait_until(lambda: "the next sweep will find it" in caplog.text)


def test_an_unresponsive_redis_times_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_app, "_MAX_UNSENT", 3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        wake = Waker(make_app(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        for number in range(5):
            wake("round", f"job {number}")
        assert "too many wait" in caplog.text
    wait_until(lambda: caplog.text.count("the next sweep will find it") == 5)


def test_an_unreachable_redis_is_named_without_the_password(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    Waker(make_app(f"redis://:s3cret@127.0.0.1:{port}/0"))("round", "job 1")
    wait_until(lambda: str(port) in caplog.text)
    assert "the next sweep will find it" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_broker_url_is_used_unchanged() -> None:
    assert make_app("redis://host:6379/0").conf.broker_url == "redis://host:6379/0"


def test_another_broker_is_refused() -> None:
    with pytest.raises(ValueError, match="TUNEFARM_BROKER is a folder or a redis"):
        make_app("amqp://host")


def test_only_json_is_accepted(broker: Path) -> None:
    assert make_app(str(broker)).conf.accept_content == ["json"]


def test_scheduler_app_imports_neither_tvm_nor_xgboost() -> None:
    code = (
        "import sys, scheduler.app; "
        "print([m for m in ('tvm', 'xgboost', 'compiler', 'search', 'sqlalchemy') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
    assert scheduler_app.QUEUE == "tunefarm"


def test_a_missing_client_of_redis_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_app, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"client isn't installed: pip install 'tunefarm\[redis\]'"):
        make_app("redis://without-a-client:6379/0")
