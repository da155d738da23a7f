"""Ed25519 keys that sign artifacts and bundles. Keys and signatures are texts that begin with `ed25519:`."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from system.errors import SettingsError

PREFIX = "ed25519:"
# Prefixes of signed data, so that a signature can't be used for another kind of data. tunefarm-runtime has
# the same ones.
CONTEXT = b"tunefarm manifest\n"
BUNDLE_CONTEXT = b"tunefarm bundle\n"
VARIABLE = "TUNEFARM_SIGNING_KEY"


@dataclass(frozen=True)
class SigningKey:
    """The private key with which a service signs the manifests of artifacts and the lists of bundles."""

    private: Ed25519PrivateKey

    @property
    def public(self) -> str:
        """The public key as text, which users of artifacts trust."""
        return _text(self.private.public_key().public_bytes_raw())

    def sign(self, manifest: bytes) -> str:
        """Return the signature of a manifest as text."""
        return _text(self.private.sign(CONTEXT + manifest))

    def sign_bundle(self, listed: bytes) -> str:
        """Return the signature of a bundle's list of files as text."""
        return _text(self.private.sign(BUNDLE_CONTEXT + listed))


def read_key(file: Path) -> SigningKey:
    """Read a private key in PEM (PKCS 8, not encrypted). Raises SettingsError."""
    make = f"make one with `openssl genpkey -algorithm ed25519 -out {file}`"
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise SettingsError(
            f"{VARIABLE} names {file}, which can't be read ({error.strerror}): {make}"
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{VARIABLE} names {file}, which holds no private key in PEM: {make}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{VARIABLE} names {file}, whose key isn't an Ed25519 key: {make}")
    return SigningKey(key)


def make_key(file: Path) -> None:
    """Write a new private key, readable by its owner only, unless the file exists. Raises OSError."""
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if file.exists():
        return
    descriptor, fresh = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    with open(descriptor, "wb") as opened:
        opened.write(pem)
    with contextlib.suppress(FileExistsError):  # another process was faster
        os.link(fresh, file)
    Path(fresh).unlink()


def _text(raw: bytes) -> str:
    return PREFIX + base64.b64encode(raw).decode()
