"""The server's settings: flags over environment (`TUNEFARM_*`) over the defaults here."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.rate_limits import OFF, parse_limit
from system.ip_addresses import is_loopback
from system.tls import TlsFiles

_NEEDS = {"tls_cert": "tls_key", "tls_key": "tls_cert", "tls_client_ca": "tls_cert"}


class ServerSettings(BaseSettings):
    """Settings of one server process. Port 0 takes any free port.

    `rate_limit` bounds the calls of every client, `failure_limit` the calls with wrong tokens from one
    address: "600/minute" or "off". `token` has all scopes, `worker_token` only the scope worker, `read_token`
    only the scope read. With `require_sandbox`, workers whose measured code isn't contained get no work.
    `max_uploads` and `max_event_streams` bound the number of open uploads and event streams. Models and
    artifacts are stored in `blob_store`, `file:///FOLDER` or `s3://BUCKET/PREFIX`, or else in the database.
    `signing_key` is the file with the private key that schedulers sign artifacts with. The server signs
    bundles with it, and shows the public key.
    """

    model_config = SettingsConfigDict(env_prefix="TUNEFARM_", env_ignore_empty=True, extra="ignore")

    database_url: str = Field(min_length=1)
    broker: str = Field(min_length=1)
    blob_store: str | None = None
    signing_key: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8760, ge=0, le=65535)
    grpc_port: int = Field(default=8761, ge=0, le=65535)
    token: SecretStr | None = None
    worker_token: SecretStr | None = None
    read_token: SecretStr | None = None
    require_sandbox: bool = False
    max_upload_bytes: int = Field(default=8 << 30, ge=1)
    max_uploads: int = Field(default=16, ge=1)
    max_event_streams: int = Field(default=1000, ge=1)
    rate_limit: str = "600/minute"
    failure_limit: str = "30/minute"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None

    @field_validator("rate_limit", "failure_limit")
    @classmethod
    def _rate_limit(cls, text: str) -> str:
        parse_limit(text)
        return text or OFF

    @model_validator(mode="after")
    def _token_on_a_network(self) -> ServerSettings:
        if not self.loopback and self.token is None:
            raise ValueError(
                f"other machines can reach {self.host}: set TUNEFARM_TOKEN to a secret, or serve on 127.0.0.1"
            )
        return self

    @model_validator(mode="after")
    def _certificate_with_key(self) -> ServerSettings:
        for given, needed in _NEEDS.items():
            if getattr(self, given) is not None and getattr(self, needed) is None:
                raise ValueError(f"TUNEFARM_{given.upper()} needs TUNEFARM_{needed.upper()}: set both")
        return self

    @property
    def tls(self) -> TlsFiles:
        """The server's TLS files; false without TLS."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def open(self) -> bool:
        """Whether calls need no token: only this machine can make them, and no token is set."""
        return self.loopback and self.token is None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)
