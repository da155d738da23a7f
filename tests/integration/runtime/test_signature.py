"""With `trusted`, a model is loaded only if a trusted key signed it and it is unchanged."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from tunefarm_runtime import LoadError, load, signature
from tunefarm_runtime.bundle import make_bundle
from tunefarm_runtime.session import InferenceSession

from core.exit_code import ExitCode
from system.signing import SigningKey, make_key, read_key
from tests.compiled_models import compile_model, sign_folder
from tests.onnx_models import residual
from tunefarm.cli.app import app, run


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("other") / "key.pem"
    make_key(file)
    return read_key(file).public


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> Path:
    folder = compile_model(residual(), tmp_path_factory.mktemp("signed") / "model")
    sign_folder(folder, key)
    return folder


def test_a_signed_model_runs(signed: Path, key: SigningKey, other: str, tmp_path: Path) -> None:
    make_bundle(signed, tmp_path / "bundle")
    for folder in (signed, tmp_path / "bundle"):
        model = load(folder, trusted=[other, key.public])
        assert model(np.ones((1, 3, 8, 8), np.float32))[0].shape == (1, 10)
    # A bundle's runtime libraries are for C. Python's come with the package, and a signed library is copied.
    mapped = Path("/proc/self/maps").read_text()
    assert str(tmp_path) not in mapped
    assert "/memfd:model.so" in mapped
    with pytest.raises(LoadError, match="isn't signed by a trusted key"):
        load(signed, trusted=other)
    with pytest.raises(LoadError, match="isn't signed by a trusted key"):
        InferenceSession(str(signed), trusted=other)


def flip(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = bytearray((folder / file).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / file).write_bytes(data)

    return change


def redirect(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"library_sha256": "0" * 64}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (flip("model.so"), "isn't the file that was signed"),
        (flip("manifest.json"), "isn't signed by a trusted key, or was changed since"),
        (redirect, "isn't signed by a trusted key, or was changed since"),
        (flip("manifest.sig"), "isn't"),
        (lambda folder: (folder / "manifest.sig").unlink(), "the model isn't signed"),
        (lambda folder: (folder / "manifest.sig").write_bytes(b"\xff\x00"), "isn't of Ed25519"),
        (lambda folder: (folder / "manifest.sig").write_text("ed25519:" + "A" * 400), "isn't of Ed25519"),
        (lambda folder: (folder / "model.so").unlink(), "can't be read"),
    ],
    ids=["library", "manifest", "digest", "signature", "none", "bytes", "long", "no library"],
)
def test_a_changed_model_is_not_loaded(
    signed: Path,
    key: SigningKey,
    tmp_path: Path,
    change: Callable[[Path], None],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy = shutil.copytree(signed, tmp_path / "copy")
    change(copy)
    with pytest.raises(LoadError, match=why):
        load(copy, trusted=key.public)
    assert run(app, ["verify", str(copy), "--trusted", key.public]) == ExitCode.BAD_INPUT
    assert "tunefarm" in capsys.readouterr().err


def test_a_size_that_is_changed_after_the_check_is_not_loaded(key: SigningKey, tmp_path: Path) -> None:
    """The library of a size is loaded with the first call of that size."""
    for batch in (1, 2):
        folder = compile_model(residual(batch), tmp_path / f"batch{batch}")
        sign_folder(folder, key)
    model = load(tmp_path, trusted=key.public)
    assert model(np.ones((1, 3, 8, 8), np.float32))[0].shape == (1, 10)
    shutil.copyfile(tmp_path / "batch1/model.so", tmp_path / "batch2/model.so")
    with pytest.raises(LoadError, match="isn't the file that was signed"):
        model(np.ones((2, 3, 8, 8), np.float32))


def test_a_library_that_is_changed_after_the_check_is_not_compared(
    signed: Path,
    key: SigningKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy, check_folder = shutil.copytree(signed, tmp_path / "copy"), signature.check_folder

    def check_then_change(folder: Path, trusted: Sequence[str]) -> bytes:
        manifest = check_folder(folder, trusted)
        flip("model.so")(folder)
        return manifest

    monkeypatch.setattr(signature, "check_folder", check_then_change)
    model = tmp_path / "model.onnx"
    model.write_bytes(residual())
    command = ["verify", str(copy), "--trusted", key.public, "--against", str(model)]
    assert run(app, command) == ExitCode.BAD_INPUT
    assert "was changed after its signature was checked" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["", "ed25519:", "ed25519:abc", "rsa:" + "A" * 44, "ed25519:" + "A" * 40])
def test_a_key_of_another_form_is_refused(signed: Path, bad: str) -> None:
    with pytest.raises(LoadError, match="the trusted key isn't of Ed25519"):
        load(signed, trusted=bad)


def test_an_empty_list_trusts_nobody(signed: Path) -> None:
    with pytest.raises(LoadError, match="no key is trusted"):
        load(signed, trusted=[])


def test_without_cryptography_the_error_names_the_package(
    signed: Path, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    with pytest.raises(LoadError, match=r"pip install 'tunefarm-runtime\[trusted\]'"):
        load(signed, trusted=key.public)
    assert load(signed).outputs[0].shape == (1, 10)


def test_the_command_checks_who_signed(
    signed: Path, key: SigningKey, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["verify", str(signed), "--trusted", key.public]) == ExitCode.OK
    assert "is signed by a trusted key" in capsys.readouterr().out
    assert run(app, ["verify", str(signed), "--trusted", key.public, "--json"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["signed"] is True
    assert run(app, ["verify", str(signed)]) == ExitCode.USAGE
    assert "give --against MODEL, --trusted KEY or both" in capsys.readouterr().err
    assert run(app, ["verify", str(signed), "--trusted", "x"]) == ExitCode.BAD_INPUT
