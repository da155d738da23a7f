"""Valid and invalid settings of the server."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from server.settings import ServerSettings

NEEDED: dict[str, Any] = {"database_url": "sqlite:///x.db", "broker": "broker"}


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_DATABASE_URL", "sqlite:///from-env.db")
    monkeypatch.setenv("TUNEFARM_BROKER", "folder")
    monkeypatch.setenv("TUNEFARM_PORT", "1234")
    monkeypatch.setenv("TUNEFARM_TOKEN", "")
    settings = ServerSettings()
    assert (settings.database_url, settings.port, settings.token) == ("sqlite:///from-env.db", 1234, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert ServerSettings(**NEEDED, host=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "board.local", ""])
def test_any_other_address_needs_a_token(host: str) -> None:
    with pytest.raises(ValidationError, match="TUNEFARM_TOKEN"):
        ServerSettings(**NEEDED, host=host)
    assert ServerSettings(**NEEDED, host=host, token="s3cret").token is not None


def test_a_token_is_not_shown() -> None:
    assert "s3cret" not in repr(ServerSettings(**NEEDED, token="s3cret"))


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_invalid_ports_are_refused(port: str) -> None:
    with pytest.raises(ValidationError, match="port"):
        ServerSettings(**NEEDED, port=port)


@pytest.mark.parametrize(
    ("host", "token", "is_open"),
    [("127.0.0.1", None, True), ("127.0.0.1", "s3cret", False), ("0.0.0.0", "s3cret", False)],
)
def test_a_configured_token_is_also_required_on_loopback(host: str, token: str | None, is_open: bool) -> None:
    assert ServerSettings(**NEEDED, host=host, token=token).open is is_open


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tls_cert": "x.pem"}, "TUNEFARM_TLS_CERT needs TUNEFARM_TLS_KEY"),
        ({"tls_key": "x.key"}, "TUNEFARM_TLS_KEY needs TUNEFARM_TLS_CERT"),
        ({"tls_client_ca": "ca.pem"}, "TUNEFARM_TLS_CLIENT_CA needs TUNEFARM_TLS_CERT"),
        ({"rate_limit": "lots"}, "a limit is like"),
        ({"failure_limit": "10/eon"}, "a limit is like"),
    ],
)
def test_half_of_tls_and_invalid_limits_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ServerSettings(**NEEDED, **given)


def test_tls_is_off_by_default() -> None:
    assert not ServerSettings(**NEEDED).tls
    assert ServerSettings(**NEEDED, tls_cert="x.pem", tls_key="x.key").tls
