"""The files that the client uploads for a model."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from core.model_format import ModelFormat, recognise
from tests.onnx_models import rectifier
from tunefarm.client import model_files
from tunefarm.client.model_files import ModelFiles

WEIGHTS, OTHERS = bytes(12) + b"1" * 500, bytes(12) + b"2" * 500 + bytes(4096)


def uploaded(path: Path) -> bytes:
    files = ModelFiles.of(path)
    data = b"".join(files.chunks())
    assert len(data) == files.size
    return data


@pytest.mark.parametrize("content", [rectifier(), b"no model", b""])
def test_a_single_model_file_is_sent_unchanged(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert uploaded(path) == content


def test_weights_in_other_files_are_sent_along(tmp_path: Path) -> None:
    path = tmp_path / "network"
    path.write_bytes(rectifier("a.bin", "b/c.bin"))
    (tmp_path / "b").mkdir()
    (tmp_path / "a.bin").write_bytes(WEIGHTS)
    (tmp_path / "b" / "c.bin").write_bytes(OTHERS)
    data = uploaded(path)
    assert data == uploaded(path)
    assert recognise(io.BytesIO(data)) is ModelFormat.ONNX_ARCHIVE
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert found == {"network.onnx": path.read_bytes(), "a.bin": WEIGHTS, "b/c.bin": OTHERS}


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(rectifier("a.bin"))
    with pytest.raises(FileNotFoundError, match=r"a\.bin"):
        uploaded(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"dear diary: " + b"1" * 500, "data that model.onnx doesn't use"),
        (WEIGHTS + bytes(1 << 20) + b"secret", "data that model.onnx doesn't use"),
        (WEIGHTS[:-1], "has 511 bytes, but the weights of model.onnx end at 512"),
        (b"", "has 0 bytes"),
    ],
)
def test_a_file_that_is_only_partly_weights_is_not_sent(content: bytes, why: str, tmp_path: Path) -> None:
    """A model of a stranger may name an ordinary file beside it as its weights."""
    (tmp_path / "diary.txt").write_bytes(content)
    path = tmp_path / "model.onnx"
    path.write_bytes(rectifier("diary.txt"))
    with pytest.raises(ValueError, match=why):
        uploaded(path)


@pytest.mark.parametrize(
    ("type_", "elements", "size"),
    [(TensorProto.UINT4, 7, 4), (TensorProto.BFLOAT16, 7, 14), (TensorProto.DOUBLE, 0, 0)],
)
def test_the_size_of_weights_follows_from_their_type(
    type_: int, elements: int, size: int, tmp_path: Path
) -> None:
    model = onnx.load_from_string(rectifier("a.bin"))
    (tensor,) = model.graph.initializer
    tensor.data_type, tensor.dims[:] = type_, [1, elements]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "a.bin").write_bytes(bytes(12) + b"1" * size)
    assert ModelFiles.of(path).files[1] == ("a.bin", tmp_path / "a.bin", 12 + size)
    (tmp_path / "a.bin").write_bytes(bytes(12) + b"1" * (size + 1))
    with pytest.raises(ValueError, match="doesn't use"):
        ModelFiles.of(path)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../passwd", "sub/../../passwd", ".env", ".ssh/id_rsa", "link", "linked/passwd", ""],
)
def test_files_elsewhere_and_hidden_files_are_not_sent(name: str, tmp_path: Path) -> None:
    """A model of a stranger may name any file as its weights, and bring links."""
    home = tmp_path / "home"
    for file in (tmp_path / "passwd", home / ".env", home / ".ssh/id_rsa"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("secret")
    (home / "link").symlink_to(tmp_path / "passwd")
    (home / "linked").symlink_to(tmp_path)
    path = home / "model.onnx"
    path.write_bytes(rectifier(name))
    with pytest.raises((ValueError, IsADirectoryError)):
        uploaded(path)


def test_links_into_the_models_own_folder_are_followed(tmp_path: Path) -> None:
    """Caches of downloads keep content by its digest, and link to it."""
    blobs, shown = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    shown.mkdir()
    for name, content in (("model.onnx", rectifier("a.bin")), ("a.bin", WEIGHTS)):
        (blobs / f"digest of {name}").write_bytes(content)
        (shown / name).symlink_to(f"../blobs/digest of {name}")
    assert WEIGHTS in uploaded(shown / "model.onnx")


def test_a_file_that_shrinks_while_it_is_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(bytes(1 << 21))

    def truncate(_: bytes) -> bool:
        weights.write_bytes(b"")
        return False

    monkeypatch.setattr(model_files, "CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr(model_files, "any", truncate, raising=False)
    with pytest.raises(ValueError, match=r"weights\.bin became shorter while it was read"):
        model_files._check_covered(tmp_path / "model.onnx", weights.name, [])
