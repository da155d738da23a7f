"""Errors in settings are one sentence that names the source of each setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import AliasChoices, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from system.errors import SettingsError
from system.settings import read_settings


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="STORE_", extra="ignore", populate_by_name=True)

    port: int = Field(ge=1)
    grpc_port: int = 2
    token: SecretStr | None = Field(default=None, validation_alias=AliasChoices("STORE_TOKEN", "TOKEN"))

    @model_validator(mode="after")
    def _ports_differ(self) -> Settings:
        if self.port == self.grpc_port:
            raise ValueError("one port can't serve both: set STORE_PORT to another")
        return self


def test_given_flags_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_PORT", "80")
    monkeypatch.setenv("STORE_GRPC_PORT", "81")
    settings = read_settings(Settings, {"port": 90, "grpc_port": None})
    assert (settings.port, settings.grpc_port) == (90, 81)


@pytest.mark.parametrize(
    ("flags", "file", "says"),
    [
        ({}, None, "the setting port is missing: give it by STORE_PORT"),
        ({"port": None}, None, "the setting port is missing: give it by --port or STORE_PORT"),
        (
            {"port": None},
            Path("store.toml"),
            "the setting port is missing: give it by --port, STORE_PORT or store.toml",
        ),
        (
            {"port": 0},
            None,
            "the setting port is wrong: Input should be greater than or equal to 1, not 0 "
            "(it comes from --port or STORE_PORT)",
        ),
        (
            {"port": 1, "grpc_port": "x"},
            None,
            "the setting grpc_port is wrong: Input should be a valid integer, unable to parse string as an "
            "integer, not 'x' (it comes from --grpc-port or STORE_GRPC_PORT)",
        ),
        (
            {"port": None, "grpc_port": "2.5"},
            None,
            "the setting port is missing: give it by --port or STORE_PORT; the setting grpc_port is wrong: "
            "Input should be a valid integer, unable to parse string as an integer, not '2.5' "
            "(it comes from --grpc-port or STORE_GRPC_PORT)",
        ),
    ],
)
def test_an_invalid_setting_is_named_with_its_sources(
    flags: dict[str, object], file: Path | None, says: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(Settings, flags, file)
    assert str(refused.value) == says


def test_contradicting_settings_are_explained_without_secrets() -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(Settings, {"port": 2, "token": "hush"})
    assert str(refused.value) == "one port can't serve both: set STORE_PORT to another"


def test_a_setting_with_an_alias_keeps_its_name() -> None:
    with pytest.raises(SettingsError, match=r"the setting token is wrong: .* STORE_TOKEN"):
        read_settings(Settings, {"port": 1, "token": 5})


def test_a_wrong_secret_is_not_printed() -> None:
    with pytest.raises(SettingsError) as refused:
        read_settings(Settings, {"port": 1, "token": 12345})
    assert "12345" not in str(refused.value)
