"""The files that the client uploads for a model."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from core.model_format import ModelFormat, recognise
from tests.onnx_models import rectifier
from tunefarm.client.model_files import ModelFiles


def uploaded(path: Path) -> bytes:
    files = ModelFiles.of(path)
    data = b"".join(files.chunks())
    assert len(data) == files.size
    return data


@pytest.mark.parametrize("content", [rectifier(), b"no model", b""])
def test_one_file_is_sent_as_it_is(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert uploaded(path) == content


def test_weights_in_other_files_are_sent_along(tmp_path: Path) -> None:
    path = tmp_path / "network"
    path.write_bytes(rectifier("a.bin", "b/c.bin"))
    (tmp_path / "b").mkdir()
    (tmp_path / "a.bin").write_bytes(b"1" * 512)
    (tmp_path / "b" / "c.bin").write_bytes(b"2" * 1000)
    data = uploaded(path)
    assert data == uploaded(path)
    assert recognise(io.BytesIO(data)) is ModelFormat.ONNX_ARCHIVE
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert found == {"network.onnx": path.read_bytes(), "a.bin": b"1" * 512, "b/c.bin": b"2" * 1000}


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(rectifier("a.bin"))
    with pytest.raises(FileNotFoundError, match=r"a\.bin"):
        uploaded(path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../passwd"])
def test_files_elsewhere_are_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(rectifier(name))
    with pytest.raises(ValueError, match="not beside it"):
        ModelFiles.of(path)
