"""The command's settings: flags over environment (`TUNEFARM_*`) over a TOML file over the defaults here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import Field, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from system.errors import SettingsError
from system.settings import read_settings
from system.tls import TlsFiles


def config_file() -> Path:
    """Return the path of the TOML file, which need not exist: `TUNEFARM_CONFIG`, or the user's own."""
    default = platformdirs.user_config_path("tunefarm") / "config.toml"
    return Path(os.environ.get("TUNEFARM_CONFIG") or default)


class CommandSettings(BaseSettings):
    """Where the service is, or how to start one. A port of 0 takes any free one.

    `ca`, `cert` and `key` are for connections to a service, `tls_*` for one that is started here.
    """

    model_config = SettingsConfigDict(env_prefix="TUNEFARM_", env_ignore_empty=True, extra="ignore")

    server: str | None = Field(
        default=None, description="A running service.", examples=["http://farm.local:8760"]
    )
    token: SecretStr | None = Field(
        default=None,
        description="The service's token, and the token of one that is started here.",
        examples=["tf_secret"],
    )
    data: Path = Field(
        default_factory=lambda: platformdirs.user_data_path("tunefarm"),
        description="The folder of a service that is started here.",
    )
    host: str = Field(default="127.0.0.1", description="The address that `tunefarm up` listens on.")
    port: int = Field(default=8760, ge=0, le=65535, description="The HTTP port of `tunefarm up`.")
    grpc_port: int = Field(default=8761, ge=0, le=65535, description="The port for workers of `tunefarm up`.")
    threads: int | None = Field(
        default=None,
        ge=1,
        description="CPU threads of the local worker's measurements; every core without it.",
        examples=[4],
    )
    ca: Path | None = Field(
        default=None, description="The authority of the service's certificate.", examples=["ca.pem"]
    )
    cert: Path | None = Field(
        default=None, description="The client's certificate, for mutual TLS.", examples=["client.pem"]
    )
    key: Path | None = Field(
        default=None, description="The key of the client's certificate.", examples=["client-key.pem"]
    )
    tls_cert: Path | None = Field(
        default=None, description="The certificate of `tunefarm up`.", examples=["server.pem"]
    )
    tls_key: Path | None = Field(
        default=None, description="The key of that certificate.", examples=["server-key.pem"]
    )
    tls_client_ca: Path | None = Field(
        default=None,
        description="The authority of clients' certificates, which `tunefarm up` then requires.",
        examples=["clients-ca.pem"],
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, config_file())
        return init_settings, env_settings, file

    @property
    def tls(self) -> TlsFiles:
        """The files of TLS for connections to a service. Raises TlsError."""
        return TlsFiles(self.cert, self.key, self.ca)

    @property
    def server_tls(self) -> TlsFiles:
        """The files of TLS for a service that is started here. Raises TlsError."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def secret(self) -> str | None:
        """The token in clear."""
        return self.token.get_secret_value() if self.token else None


def load(**flags: Any) -> CommandSettings:
    """Read the settings, with the flags that were given. Raises SettingsError."""
    try:
        return read_settings(CommandSettings, flags, config_file())
    except (ValueError, OSError) as error:
        raise SettingsError(f"{config_file()} is not readable TOML: {error}") from error
