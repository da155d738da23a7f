"""Flags over environment over file."""

from __future__ import annotations

from pathlib import Path

import pytest

from system.errors import SettingsError
from system.tls import TlsFiles
from tunefarm.settings import load


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config.toml"
    monkeypatch.setenv("TUNEFARM_CONFIG", str(file))
    for name in (
        "SERVER",
        "TOKEN",
        "DATA",
        "PORT",
        "CA",
        "CERT",
        "KEY",
        "TLS_CERT",
        "TLS_KEY",
        "TLS_CLIENT_CA",
    ):
        monkeypatch.delenv(f"TUNEFARM_{name}", raising=False)
    return file


def test_flags_win_over_environment_and_environment_over_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('server = "http://file"\nport = 1\ntoken = "file"\n')
    monkeypatch.setenv("TUNEFARM_SERVER", "http://environment")
    monkeypatch.setenv("TUNEFARM_PORT", "2")
    settings = load(server="http://flag", token=None)
    assert (settings.server, settings.port, settings.secret) == ("http://flag", 2, "file")


def test_without_anything_there_are_defaults(config: Path) -> None:
    assert not config.exists()
    settings = load()
    assert settings.server is None
    assert settings.data.is_absolute()


def test_a_wrong_value_is_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_PORT", "eighty")
    with pytest.raises(SettingsError, match=r"port is wrong.*not 'eighty'.*TUNEFARM_PORT or .*config\.toml"):
        load()


def test_an_invalid_toml_file_is_named(config: Path) -> None:
    config.write_text("server = ")
    with pytest.raises(SettingsError, match=str(config)):
        load()


def test_the_token_is_not_printed(config: Path) -> None:
    assert "hush" not in repr(load(token="hush"))


def test_files_for_tls_come_from_the_settings(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load().tls
    monkeypatch.setenv("TUNEFARM_CA", "ca.pem")
    monkeypatch.setenv("TUNEFARM_TLS_CERT", "server.pem")
    monkeypatch.setenv("TUNEFARM_TLS_KEY", "server.key")
    assert load().tls == TlsFiles(ca=Path("ca.pem"))
    assert load().server_tls == TlsFiles(Path("server.pem"), Path("server.key"))
