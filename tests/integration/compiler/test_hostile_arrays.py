"""Hostile .npz files of calibration data and of inputs: children refuse each of them with a reason."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from compiler.children import inference, quantization
from compiler.importing.spec import ModelError, TensorSpec
from core.archive_outline import zip_names
from core.job import Quantize
from tests.onnx_models import products

SPEC = TensorSpec("input", (1, 128), "float32")


def header(descr: str = "'<f4'", shape: str = "(1, 128)", version: int = 1) -> bytes:
    """Return the header of an .npy file; its texts needn't make sense."""
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes((version, 0)) + size + text


def npz(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


class Payload:
    """An object that writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._file,)


def pickled(mark: Path) -> bytes:
    array = np.empty(1, object)
    array[0] = Payload(mark)
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return npz(("input.npy", file.getvalue()))


def bomb(_: Path) -> bytes:
    """A file of megabytes that unpacks to gigabytes."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("input.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(header(shape=f"({2 << 30 >> 9}, 128)"))
        for _number in range(2 << 6):
            stream.write(bytes(1 << 24))
    return file.getvalue()


def shrunk(_: Path) -> bytes:
    """A file whose directory says that the array is shorter than it is."""
    data = bytearray(npz(("input.npy", header() + bytes(512)), method=zipfile.ZIP_DEFLATED))
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 100)
    return bytes(data)


def of(content: bytes) -> Callable[[Path], bytes]:
    return lambda _: npz(("input.npy", content))


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "pickle": pickled,
    "bare pickle": lambda mark: npz(("input.npy", pickle.dumps(Payload(mark)))),
    "bomb": bomb,
    "shrunk": shrunk,
    "expression": of(header(shape="(__import__('os').getpid(),)")),
    "deep": of(header(shape="(" * 5000 + ")" * 5000)),
    "long header": of(header(shape=f"({'1,' * 100_000})", version=2)),
    "vast": of(header(shape="(4611686018427387904, 2)")),
    "negative": of(header(shape="(-1, 128)")),
    "wide": of(header(descr="'<U2147483647'")),
    "overflow": of(header(descr="[('a', '<f4', (4294967296, 4294967296))]")),
    "empty type": of(header(descr="'|V0'", shape="(4611686018427387904,)")),
    "cut short": of(header()),
    "no array": of(b""),
    "encrypted": lambda _: npz(("input.npy", header() + bytes(512))).replace(
        b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
    ),
    "elsewhere": lambda _: npz(("../input.npy", header() + bytes(512))),
}


@pytest.mark.slow_lane(seconds=1.5)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arrays_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    mark, file = tmp_path / "unpickled", tmp_path / "data.npz"
    file.write_bytes(HOSTILE[name](mark))
    with file.open("rb") as opened:
        assert all(one.endswith(".npy") for one in zip_names(opened)), "the server would refuse it"
        with pytest.raises(ModelError, match="the file of inputs") as refused:
            inference.check_inputs(opened, [SPEC])
    assert "crashed" not in str(refused.value)
    assert not mark.exists()


@pytest.mark.slow_lane(seconds=1.5)
@pytest.mark.parametrize("name", ["pickle", "vast"])
def test_hostile_calibration_data_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    mark, file = tmp_path / "unpickled", tmp_path / "data.npz"
    file.write_bytes(HOSTILE[name](mark))
    model = tmp_path / "model.onnx"
    model.write_bytes(products())
    into = io.BytesIO()
    with file.open("rb") as data, model.open("rb") as opened, pytest.raises(ModelError) as refused:
        quantization.quantize_model(opened, {}, Quantize.INT8, data, into)
    assert "calibration data" in str(refused.value)
    assert not mark.exists()
    assert into.getvalue() == b""


def test_the_arrays_that_these_files_imitate_are_read(tmp_path: Path) -> None:
    file = tmp_path / "data.npz"
    file.write_bytes(npz(("input.npy", header() + bytes(512)), ("other.npy", pickle.dumps({}))))
    with file.open("rb") as opened:
        inference.check_inputs(opened, [SPEC])
