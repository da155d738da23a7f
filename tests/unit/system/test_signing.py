"""The service's signing key: accepted formats, and permissions of its file."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from system.errors import SettingsError
from system.signing import CONTEXT, make_key, read_key


def test_a_signing_key_is_created_once_and_private_to_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: make_key(file), range(8)))
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["key.pem"]
    before = file.read_bytes()
    make_key(file)
    assert file.read_bytes() == before


def test_a_signature_covers_the_manifest(tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    key = read_key(tmp_path / "key.pem")
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.public.removeprefix("ed25519:")))
    signature = base64.b64decode(key.sign(b"{}").removeprefix("ed25519:"))
    public.verify(signature, CONTEXT + b"{}")
    for other in (b"{}", CONTEXT + b"{ }"):
        with pytest.raises(InvalidSignature):
            public.verify(signature, other)


def test_an_invalid_key_file_is_rejected_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    with pytest.raises(SettingsError, match=r"can't be read .*: make one with `openssl genpkey"):
        read_key(file)
    elliptic = ec.generate_private_key(ec.SECP256R1())
    pem = elliptic.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    bad = ((b"", "no private key"), (b"\xff" * 99, "no private key"), (pem, "isn't an Ed25519 key"))
    for content, why in bad:
        file.write_bytes(content)
        with pytest.raises(SettingsError, match=why):
            read_key(file)
    with pytest.raises(SettingsError, match="can't be read"):
        read_key(tmp_path)
