"""Signatures of compiled models: the service signs the manifest, which has the digest of the library."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tunefarm_runtime.errors import LoadError
from tunefarm_runtime.weights import whole

SIGNATURE = "manifest.sig"
PREFIX = "ed25519:"
# Precedes what is signed, as `system/signing.py` of the service has it.
CONTEXT = b"tunefarm manifest\n"


def check_signature(folder: Path, trusted: str | Sequence[str]) -> bytes:
    """Return the manifest of a compiled model that one of these keys has signed.

    Keys are texts like `ed25519:...`, as `GET /v1/signing-key` returns them. Raises LoadError where the
    signature is missing or is another key's, and where the manifest or the library was changed since.
    """
    keys = [trusted] if isinstance(trusted, str) else list(trusted)
    if not keys:
        raise LoadError("no key is trusted: give the service's public key, as GET /v1/signing-key returns it")
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise LoadError(
            "signatures can't be checked: pip install 'tunefarm-runtime[trusted]', which has cryptography"
        ) from error
    public = [Ed25519PublicKey.from_public_bytes(_raw(key, 32, "the trusted key")) for key in keys]
    manifest, text = _read(folder / "manifest.json"), _read(folder / SIGNATURE)
    signature = _raw(text.decode("utf-8", "replace").strip(), 64, str(folder / SIGNATURE))
    for key in public:
        try:
            key.verify(signature, CONTEXT + manifest)
        except InvalidSignature:
            continue
        check_library(folder / "model.so", signed_digest(manifest))
        return manifest
    raise LoadError(
        f"{folder / 'manifest.json'} isn't signed by a trusted key, or was changed since: "
        "download the model again, or trust the key of its service"
    )


def signed_digest(manifest: bytes) -> str:
    """Return the SHA-256 of the library that a signed manifest is about. Raises LoadError."""
    try:
        return str(json.loads(manifest)["library_sha256"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise LoadError("the manifest has no digest of its library: publish the model again") from error


def check_library(library: Path, signed: str) -> None:
    """Raise LoadError unless a library, with its weights, has the digest that was signed."""
    found = hashlib.sha256()
    try:
        for piece in whole(library):
            found.update(piece)
    except OSError as error:
        raise LoadError(f"{library} can't be read: {error.strerror}") from error
    if found.hexdigest() != signed:
        raise LoadError(f"{library} isn't the library that was signed: download the model again")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        raise LoadError(
            f"{file} is missing, so the model isn't signed: set TUNEFARM_SIGNING_KEY of its service, "
            "and publish it again"
        ) from error
    except OSError as error:
        raise LoadError(f"{file} can't be read: {error.strerror}") from error


def _raw(text: str, size: int, what: str) -> bytes:
    try:
        raw = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if not text.startswith(PREFIX) or len(raw) != size:
        raise LoadError(f"{what} isn't of Ed25519: it is {PREFIX} with {size} bytes in Base64")
    return raw
