"""Signatures of compiled models and bundles.

The service signs the manifest, which has the digest of the library. In a bundle, it also signs `bundle.json`,
which has the digests of the manifest and of all files that it added.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tunefarm_runtime.errors import LoadError
from tunefarm_runtime.weights import changed, whole

MANIFEST, LIBRARY, SIGNATURE = "manifest.json", "model.so", "manifest.sig"
BUNDLE, BUNDLE_SIGNATURE = "bundle.json", "bundle.sig"
PREFIX = "ed25519:"
# Prefixes of signed data, as in the service's `system/signing.py`.
CONTEXT = b"tunefarm manifest\n"
BUNDLE_CONTEXT = b"tunefarm bundle\n"


def check_signature(folder: Path, trusted: str | Sequence[str]) -> bytes:
    """Return the manifest of a compiled model that one of these keys has signed.

    Keys are texts like `ed25519:...`, as `GET /v1/signing-key` returns them. Raises LoadError where the
    signature is missing or is another key's, and where the manifest or the library was changed since.
    """
    manifest = _signed_text(folder / MANIFEST, folder / SIGNATURE, CONTEXT, trusted)
    check_library(folder / LIBRARY, signed_digest(manifest))
    return manifest


def check_folder(folder: Path, trusted: str | Sequence[str]) -> bytes:
    """Check that one of these keys has signed every file in the folder of a compiled model; raise LoadError
    otherwise. Return the manifest.

    A bundle's libraries, headers and sources are in its `bundle.json`. Models beside them, such as the
    quantized one that `tunefarm tune` writes, may be unsigned: nothing here reads them.
    """
    manifest = check_signature(folder, trusted)
    digests: Mapping[str, str] = {}
    if (folder / BUNDLE).exists():
        listed = _signed_text(folder / BUNDLE, folder / BUNDLE_SIGNATURE, BUNDLE_CONTEXT, trusted)
        digests = json.loads(listed)
        for name, digest in digests.items():
            _check_digest(folder / name, map(Path.read_bytes, [folder / name]), digest)
    checked = {MANIFEST, LIBRARY, SIGNATURE, *((BUNDLE, BUNDLE_SIGNATURE) if digests else ()), *digests}
    for file in _files_below(folder):
        is_model = file.parent == folder and file.suffix == ".onnx"
        if not is_model and file.relative_to(folder).as_posix() not in checked:
            raise LoadError(
                f"{file} isn't signed: move it elsewhere, or download its bundle again from a service with "
                "TUNEFARM_SIGNING_KEY"
            )
    return manifest


def list_files(files: Mapping[str, bytes], manifest: bytes) -> bytes:
    """Return the content of `bundle.json`: the SHA-256 of the manifest, and of files by their names."""
    listed = {name: hashlib.sha256(data).hexdigest() for name, data in {**files, MANIFEST: manifest}.items()}
    return json.dumps(listed, indent=1, sort_keys=True).encode()


def signed_digest(manifest: bytes) -> str:
    """Return the SHA-256 of the library in a signed manifest. Raises LoadError."""
    try:
        return str(json.loads(manifest)["library_sha256"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise LoadError("the manifest has no digest of its library: publish the model again") from error


def check_library(library: Path, signed: str) -> None:
    """Raise LoadError unless a library with its weights has the signed SHA-256."""
    _check_digest(library, whole(library), signed)


def _check_digest(file: Path, pieces: Iterable[bytes], signed: str) -> None:
    found = hashlib.sha256()
    try:
        for piece in pieces:
            found.update(piece)
    except OSError as error:
        raise LoadError(f"{file} can't be read: {error.strerror}") from error
    if found.hexdigest() != signed:
        raise changed(file)


def _signed_text(file: Path, signature: Path, context: bytes, trusted: str | Sequence[str]) -> bytes:
    """Return the content of a file that one of these keys has signed. Raises LoadError."""
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
    content, text = _read(file), _read(signature)
    raw = _raw(text.decode("utf-8", "replace").strip(), 64, str(signature))
    for key in public:
        try:
            key.verify(raw, context + content)
        except InvalidSignature:
            continue
        return content
    raise LoadError(
        f"{file} isn't signed by a trusted key, or was changed since: "
        "download the model again, or trust the key of its service"
    )


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder. A link to a folder counts as a file: it may lead anywhere."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path)
        else:
            yield path


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
