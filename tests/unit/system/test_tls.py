"""TLS files: each error is one sentence."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from system.tls import TlsError, TlsFiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates with their keys, and their authority."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("one", "two"):
        made = authority.issue_cert("localhost")
        made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        made.private_key_pem.write_to_path(folder / f"{name}.key")
    key = load_pem_private_key((folder / "one.key").read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    (folder / "locked.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, secret)
    )
    (folder / "text.pem").write_text("this is no certificate\n")
    return folder


def test_good_files_are_loaded(folder: Path) -> None:
    files = TlsFiles(folder / "one.pem", folder / "one.key", folder / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    files.load_into(context)
    assert len(context.get_ca_certs()) == 1
    texts = files.read()
    assert texts.key == (folder / "one.key").read_bytes()
    assert "PRIVATE" not in repr(texts)


def test_an_empty_set_of_tls_files_is_false() -> None:
    assert not TlsFiles()
    assert TlsFiles(ca=Path("ca.pem"))


@pytest.mark.parametrize(
    ("cert", "key", "ca", "says"),
    [
        ("one.pem", "two.key", None, "doesn't belong to the certificate"),
        ("gone.pem", "one.key", None, r"gone\.pem can't be read \(No such file or directory\)"),
        ("one.pem", "gone.key", None, r"gone\.key can't be read"),
        ("one.pem", "locked.key", None, r"locked\.key is encrypted"),
        ("text.pem", "one.key", None, "are no certificate and key"),
        ("one.pem", "text.pem", None, "are no certificate and key"),
        ("one.pem", "one.key", "text.pem", r"text\.pem holds no certificates"),
        ("one.pem", "one.key", "gone.pem", r"gone\.pem can't be read"),
        ("one.pem", "one.key", ".", "can't be read"),
    ],
)
def test_errors_in_tls_files_are_named(folder: Path, cert: str, key: str, ca: str | None, says: str) -> None:
    files = TlsFiles(folder / cert, folder / key, None if ca is None else folder / ca)
    with pytest.raises(TlsError, match=says):
        files.read()


@pytest.mark.parametrize("given", [{"cert": Path("x.pem")}, {"key": Path("x.key")}])
def test_a_certificate_without_its_key_is_rejected(given: dict[str, Path]) -> None:
    with pytest.raises(TlsError, match="give both or neither"):
        TlsFiles(**given)
