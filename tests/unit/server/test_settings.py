"""What settings are allowed."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from server.settings import Settings

NEEDED = {"database_url": "sqlite:///x.db", "broker": "broker"}


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_DATABASE_URL", "sqlite:///from-env.db")
    monkeypatch.setenv("TUNEFARM_BROKER", "folder")
    monkeypatch.setenv("TUNEFARM_PORT", "1234")
    monkeypatch.setenv("TUNEFARM_TOKEN", "")
    settings = Settings()
    assert (settings.database_url, settings.port, settings.secret) == ("sqlite:///from-env.db", 1234, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert Settings(**NEEDED, host=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "board.local", ""])
def test_any_other_address_needs_a_token(host: str) -> None:
    with pytest.raises(ValidationError, match="TUNEFARM_TOKEN"):
        Settings(**NEEDED, host=host)
    assert Settings(**NEEDED, host=host, token="s3cret").secret == "s3cret"


def test_a_token_is_not_shown() -> None:
    assert "s3cret" not in repr(Settings(**NEEDED, token="s3cret"))


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_impossible_ports_are_refused(port: str) -> None:
    with pytest.raises(ValidationError, match="port"):
        Settings(**NEEDED, port=port)
