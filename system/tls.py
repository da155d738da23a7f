"""Read and check the PEM files of TLS, for servers and clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from system.errors import SettingsError


class TlsError(SettingsError):
    """A TLS file can't be used. The message says which, why and what to do."""


@dataclass(frozen=True)
class TlsFiles:
    """One end's own certificate (chain) with its key, and the authorities that it trusts.

    Raises TlsError for a certificate without a key, and for a key without a certificate.
    """

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            missing = "a key, but no certificate" if self.cert is None else "a certificate, but no key"
            raise TlsError(f"TLS was given {missing}: give both or neither")

    def __bool__(self) -> bool:
        """Return whether any file is given."""
        return self.cert is not None or self.ca is not None

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the files into a context. Raises TlsError if a file can't be read or isn't PEM, if the key is
        encrypted, or if it doesn't belong to the certificate."""
        for path in filter(None, (self.cert, self.key, self.ca)):
            _read(path)
        if self.ca is not None:
            try:
                context.load_verify_locations(self.ca)
            except (ssl.SSLError, OSError) as error:
                raise TlsError(
                    f"{self.ca} holds no certificates of authorities: give a file in PEM format"
                ) from error
        if self.cert is None or self.key is None:
            return

        def no_passphrase() -> str:
            raise TlsError(
                f"the key {self.key} is encrypted: decrypt it, because nobody can enter its passphrase"
            )

        try:
            context.load_cert_chain(self.cert, self.key, no_passphrase)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise TlsError(
                    f"the key {self.key} doesn't belong to the certificate {self.cert}: give its own"
                ) from error
            raise TlsError(
                f"{self.cert} and {self.key} are no certificate and key: give files in PEM format"
            ) from error

    def read(self) -> PemTexts:
        """Return the contents of the files, for gRPC. Raises TlsError as `load_into` does."""
        self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        return PemTexts(*(None if path is None else _read(path) for path in (self.cert, self.key, self.ca)))


@dataclass(frozen=True)
class PemTexts:
    """The contents of TlsFiles. They are never printed, because the key is a secret."""

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
