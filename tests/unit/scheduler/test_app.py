"""Waking the scheduler from another process."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler import app as scheduler_app
from scheduler.app import default_app, make_app, wake


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFARM_BROKER", str(tmp_path / "broker"))
    default_app.cache_clear()
    return tmp_path / "broker"


def test_a_wake_up_is_one_message_that_names_the_step_and_the_job(broker: Path) -> None:
    wake("plan", "job 1")
    [path] = broker.glob("*.msg")
    message = json.loads(path.read_text())
    assert message["headers"]["task"] == "scheduler.plan"
    assert message["content-type"] == "application/json"
    arguments, *_ = json.loads(base64.b64decode(message["body"]))
    assert arguments == ["job 1"]
    assert list((broker / "control").iterdir()) == []


def test_a_broker_that_is_away_does_not_disturb_the_caller(
    broker: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wake("plan", "job 1")
    for path in (*broker.glob("*.msg"), broker / "control"):
        path.unlink() if path.is_file() else path.rmdir()
    broker.rmdir()
    wake("plan", "job 2")
    assert "the next sweep will find it" in caplog.text


def test_a_broker_url_is_taken_as_it_is() -> None:
    conf = make_app("redis://host:6379/0").conf
    assert conf.broker_url == "redis://host:6379/0"
    assert not conf.broker_transport_options


def test_only_json_is_accepted(broker: Path) -> None:
    assert default_app().conf.accept_content == ["json"]


def test_the_server_can_import_it_without_a_compiler_or_a_learner() -> None:
    code = (
        "import sys, scheduler.app; "
        "print([m for m in ('tvm', 'xgboost', 'compiler', 'search', 'sqlalchemy') if m in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"
    assert scheduler_app.QUEUE == "tunefarm"
