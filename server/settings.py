"""The server's settings, read once: flags over environment (`TUNEFARM_*`) over the values here."""

from __future__ import annotations

import ipaddress

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """`max_*_bytes` are bytes; port 0 takes any free port."""

    model_config = SettingsConfigDict(env_prefix="TUNEFARM_", env_ignore_empty=True, extra="ignore")

    database_url: str = Field(min_length=1)
    broker: str = Field(min_length=1)
    host: str = "127.0.0.1"
    port: int = Field(default=8760, ge=0, le=65535)
    grpc_port: int = Field(default=8761, ge=0, le=65535)
    token: SecretStr | None = None
    max_upload_bytes: int = Field(default=1 << 30, ge=1)

    @model_validator(mode="after")
    def _guard_the_network(self) -> Settings:
        if not self.loopback and self.token is None:
            raise ValueError(
                f"serving on {self.host} lets other machines in: set TUNEFARM_TOKEN to a secret, "
                "or serve on 127.0.0.1"
            )
        return self

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def secret(self) -> str | None:
        """The token in clear, None when no call needs one."""
        return None if self.token is None else self.token.get_secret_value()
