"""`tunefarm token` against a real service."""

from __future__ import annotations

import json

import pytest

from core.exit_code import ExitCode
from core.tokens import DEFAULT_LIFETIME_S
from system.command import CommandError
from tunefarm.cli.app import run
from tunefarm.cli.tokens import app, lifetime_s

from .conftest import Service, Start, bearer

BOOTSTRAP = "the bootstrap token"


@pytest.fixture
def guarded(start: Start, monkeypatch: pytest.MonkeyPatch) -> Service:
    service = start(token=BOOTSTRAP)
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    monkeypatch.setenv("TUNEFARM_TOKEN", BOOTSTRAP)
    return service


def test_a_token_is_made_used_listed_and_revoked(
    guarded: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["create", "--name", "ci", "--scope", "read", "--scope", "submit"]) == ExitCode.OK
    made = capsys.readouterr()
    secret = made.out.strip()
    assert "copy it now" in made.err
    assert secret not in made.err
    headers = {"Authorization": f"Bearer {secret}"}
    assert guarded.http.get("/v1/jobs", headers=headers).is_success

    assert run(app, ["list", "--json"]) == ExitCode.OK
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["scopes"], listed["state"]) == ("ci", ["read", "submit"], "active")
    assert listed["expires_at"] - listed["created_at"] == pytest.approx(90 * 86400)

    assert run(app, ["revoke", listed["id"]]) == ExitCode.OK
    assert "is revoked" in capsys.readouterr().out
    assert guarded.http.get("/v1/jobs", headers=headers).status_code == 401
    assert run(app, ["list"]) == ExitCode.OK
    assert "revoked" in capsys.readouterr().out


def test_json_has_every_field(guarded: Service, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["create", "--name", "board", "--scope", "worker", "--expires", "never", "--json"]
    assert run(app, arguments) == ExitCode.OK
    made = json.loads(capsys.readouterr().out)
    assert made["token"].startswith("tf_")
    assert (made["expires_at"], made["scopes"]) == (None, ["worker"])
    asked = {"name": "board", "scopes": ["worker"]}
    plain = guarded.http.post("/v1/tokens", json=asked, headers=bearer(BOOTSTRAP)).json()
    assert plain["expires_at"] - plain["created_at"] == DEFAULT_LIFETIME_S, "as by the command"


def test_the_error_names_the_missing_scope(
    guarded: Service, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(app, ["create", "--name", "ci", "--scope", "read"])
    monkeypatch.setenv("TUNEFARM_TOKEN", capsys.readouterr().out.strip())
    assert run(app, ["list"]) == ExitCode.REFUSED
    assert "lacks the scope admin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800.0), ("12h", 43200.0), ("90d", 7776000.0), ("2w", 1209600.0)]
)
def test_lifetimes_are_parsed(text: str, seconds: float) -> None:
    assert lifetime_s(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "-1d", "1.5d", "forever", "1000000d"])
def test_an_invalid_lifetime_is_named(text: str) -> None:
    with pytest.raises(CommandError, match="90d"):
        lifetime_s(text)
