"""The PEM files of TLS at either end of a connection: read and checked once, refused in one sentence."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from system.settings import SettingsError


class TlsError(SettingsError):
    """A file that TLS needs can't be used; the message says which, why and what to do."""


@dataclass(frozen=True)
class TlsFiles:
    """One end's own certificate (chain) with its key, and the authorities it trusts. Raises TlsError."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "a key, but no certificate" if self.cert is None else "a certificate, but no key"
            raise TlsError(f"TLS was given {missing}: give both or neither")

    def __bool__(self) -> bool:
        """Whether there is anything to use."""
        return self.cert is not None or self.ca is not None

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises TlsError: a file that can't be read, isn't PEM or doesn't belong to the other one."""
        for path in filter(None, (self.cert, self.key, self.ca)):
            _read(path)
        if self.ca is not None:
            _load_ca(context, self.ca)
        if self.cert is not None and self.key is not None:
            _load_pair(context, self.cert, self.key)

    def checked(self) -> PemTexts:
        """What the files hold, for gRPC. Raises TlsError as `load_into` does."""
        self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return PemTexts(*(None if path is None else _read(path) for path in (self.cert, self.key, self.ca)))


@dataclass(frozen=True)
class PemTexts:
    """The contents of TlsFiles. Never printed: one of them is a secret."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None

    def __repr__(self) -> str:
        return "PemTexts(...)"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        cause = error.strerror or str(error)
        raise TlsError(f"{path} can't be read ({cause}): check its path and permissions") from error


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{ca} holds no certificates of authorities: give a file in PEM format") from error


def _load_pair(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    def no_passphrase() -> str:
        raise TlsError(f"the key {key} is encrypted: decrypt it, nobody is there to type its passphrase")

    try:
        context.load_cert_chain(cert, key, no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the key {key} is not that of the certificate {cert}: give its own") from error
        raise TlsError(f"{cert} and {key} are no certificate and key: give files in PEM format") from error
