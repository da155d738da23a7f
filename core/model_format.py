"""Recognize the format of a model's file by its content.

Servers do this with untrusted files. So no library reads the bytes: this module reads an outline in a bounded
number of steps.

An ONNX file is one protobuf message: a sequence of fields, each a tag and a value. Reading the tags
and skipping the values finds text, archives, truncated uploads and other formats within microseconds.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import IO

from core.archive_outline import MalformedArchive, first_tar_name, zip_names

_GRAPH_FIELD = 7
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MAX_FIELDS = 100_000
_MAX_EXTENT = 1 << 63
_MAX_OFFSET_DIGITS = 18
# The bits of an element by TensorProto.DataType, in files of external weights.
_ELEMENT_BITS = {
    **dict.fromkeys((15,), 128),
    **dict.fromkeys((7, 11, 13, 14), 64),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
}
# Protobuf's own limit is 100 nested messages, and a graph within a graph takes three.
_MAX_DEPTH = 32
# The offsets of the magic bytes of a tar and of a TFLite file.
_TAR_AT, _TAR = 257, b"ustar"
_TFLITE_AT, _TFLITE = 4, b"TFL3"
_ZIP = b"PK\x03\x04"
_TVM_KEYS = (b'"root_index"', b'"nodes"', b'"metadata"')
# The first bytes of MLIR's bytecode, and of its text after comments: a module, a function, or an attribute's
# alias.
MLIR_BYTECODE = b"ML\xefR"
_MLIR_TEXT = re.compile(rb"(\s|//[^\n]*\n)*((\"?builtin\.)?module\b|func\.func\b|#[\w.]+ = )")
# The number of the field of jax.export's table with the artifact.
_EXPORTED_FIELD = 13


class ModelFormat(StrEnum):
    """The format of a model's file. An ONNX archive is a tar of a .onnx file and its weights' files."""

    ONNX = "ONNX"
    ONNX_ARCHIVE = "ONNX with weights in other files"
    EXPORTED_PROGRAM = "PyTorch exported program"
    TFLITE = "TFLite"
    STABLEHLO = "StableHLO"
    TVM = "TVM module"


class UnknownFormat(ValueError):
    """The file isn't a readable model. The message is one sentence."""


def recognise(file: IO[bytes]) -> ModelFormat:
    """Return the format of a file. Raises UnknownFormat."""
    file.seek(0, os.SEEK_END)
    size = file.tell()
    if size == 0:
        raise UnknownFormat("The file is empty: send the model's file.")
    file.seek(0)
    head = file.read(_TAR_AT + len(_TAR))
    if head.startswith(_ZIP):
        return _recognise_zip(file)
    if head[_TAR_AT:] == _TAR:
        return _recognise_tar(file)
    if head[_TFLITE_AT:].startswith(_TFLITE):
        return ModelFormat.TFLITE
    if head.lstrip().startswith(b"{") and any(key in head for key in _TVM_KEYS):
        return ModelFormat.TVM
    if head.startswith(MLIR_BYTECODE) or _MLIR_TEXT.match(head) or exported_artifact(file):
        return ModelFormat.STABLEHLO
    file.seek(0)
    try:
        numbers = {number for number, _, _ in fields(file, 0, size)}
    except MalformedMessage as error:
        raise UnknownFormat(f"This is not an ONNX file or another known model: {error}.") from error
    if _GRAPH_FIELD not in numbers:
        raise UnknownFormat("This is not an ONNX file: it holds no graph.")
    return ModelFormat.ONNX


def exported_artifact(file: IO[bytes]) -> slice | None:
    """Return the start and end of the program in a file of jax.export, a FlatBuffers table; None for other
    files."""

    def at(place: int, form: str) -> int:
        file.seek(place)
        (number,) = struct.unpack(form, file.read(struct.calcsize(form)))
        return int(number)

    try:
        table = at(0, "<I")
        fields_ = table - at(table, "<i")
        place = table + at(fields_ + 4 + 2 * _EXPORTED_FIELD, "<H")
        length_at = place + at(place, "<I")
        start, length = length_at + 4, at(length_at, "<I")
        file.seek(start)
        return slice(start, start + length) if file.read(len(MLIR_BYTECODE)) == MLIR_BYTECODE else None
    except (struct.error, ValueError, OSError):
        return None


def _recognise_zip(file: IO[bytes]) -> ModelFormat:
    is_program = is_pickled = False
    try:
        for path in zip_names(file):
            name = path.partition("/")[2] or path
            is_program |= name.startswith("models/") and name.endswith(".json")
            is_pickled |= name == "data.pkl"
    except MalformedArchive as error:
        raise UnknownFormat(f"This is a damaged zip archive, not a model: {error}.") from error
    if is_program:
        return ModelFormat.EXPORTED_PROGRAM
    if is_pickled:
        raise UnknownFormat(
            "This is a PyTorch file of pickled objects or TorchScript, which may hold any program and isn't "
            "read: save the model with torch.export.save(torch.export.export(model, inputs), 'model.pt2')."
        )
    raise UnknownFormat(
        "This is a zip archive, but not a program of torch.export: save it with PyTorch 2.8 or newer, "
        "by torch.export.save."
    )


def _recognise_tar(file: IO[bytes]) -> ModelFormat:
    try:
        first = first_tar_name(file)
    except MalformedArchive as error:
        raise UnknownFormat(f"This is a damaged tar archive: {error}.") from error
    if first is None or not first.endswith(".onnx"):
        raise UnknownFormat(
            "This tar archive doesn't begin with an .onnx file: send the .onnx file, or let tunefarm's "
            "client pack it with its weights."
        )
    return ModelFormat.ONNX_ARCHIVE


def external_files(file: IO[bytes]) -> dict[str, list[tuple[int, int]]]:
    """Return the start and end of each tensor in the files with an ONNX file's external weights.

    The files' names are relative to the ONNX file. Raises MalformedMessage.
    """
    file.seek(0, os.SEEK_END)
    size = file.tell()
    found: dict[str, list[tuple[int, int]]] = {}
    for tensor in _tensors(file, size):
        # TensorProto.external_data: a map from "location" and "offset", as entries
        entries = {}
        for start, end in _messages(file, *tensor, (13,)):
            spans = {number: (begin, stop) for number, begin, stop in fields(file, start, end)}
            key, value = (_text(file, spans[number]) if number in spans else "" for number in (1, 2))
            entries[key] = value
        if "location" in entries:
            offset = entries.get("offset") or "0"
            if not (offset.isascii() and offset.isdigit() and len(offset) <= _MAX_OFFSET_DIGITS):
                raise MalformedMessage(f"the offset {offset!r} of a weight is no number")
            end = int(offset) + _tensor_bytes(file, *tensor)
            found.setdefault(entries["location"], []).append((int(offset), end))
    return found


def _tensor_bytes(file: IO[bytes], start: int, end: int) -> int:
    """Return the size of a tensor's data in bytes. Raises MalformedMessage for an unknown type."""
    elements, bits = 1, None
    for number, begin, stop in fields(file, start, end):
        if number == 1:  # dims
            file.seek(begin)
            while file.tell() < stop:
                elements *= _varint(file)
        elif number == 2:  # data_type
            file.seek(begin)
            bits = _ELEMENT_BITS.get(_varint(file))
    if bits is None or elements >= _MAX_EXTENT:
        raise MalformedMessage("a weight has an unknown type or an impossible shape")
    return -(-elements * bits // 8)


def _tensors(file: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each tensor of an ONNX file: weights and attributes.

    Functions and graphs within nodes are included. Raises MalformedMessage.
    """
    # ModelProto.graph; ModelProto.functions, whose nodes are in the field 7
    graphs = [(span, 0) for span in _messages(file, 0, size, (7,))]
    nodes = [(span, 0) for span in _messages(file, 0, size, (25, 7))]
    while graphs or nodes:
        if graphs:
            graph, depth = graphs.pop()
            yield from _messages(file, *graph, (5,))
            nodes += [(node, depth) for node in _messages(file, *graph, (1,))]
            continue
        node, depth = nodes.pop()
        for attribute in _messages(file, *node, (5,)):
            yield from _messages(file, *attribute, (5,))
            yield from _messages(file, *attribute, (10,))
            inner = [*_messages(file, *attribute, (6,)), *_messages(file, *attribute, (11,))]
            if inner and depth == _MAX_DEPTH:
                raise MalformedMessage("its graphs are nested too deeply")
            graphs += [(graph, depth + 1) for graph in inner]


def input_dimensions(file: IO[bytes]) -> dict[str, tuple[int | str, ...]]:
    """Return the dimensions of an ONNX file's inputs, by name.

    A dimension is an extent, or the name of an open one, which may be empty. Inputs without a shape have no
    dimensions. Raises MalformedMessage.
    """
    file.seek(0, os.SEEK_END)
    *_, graph = _messages(file, 0, file.tell(), (7,))
    weights = {_text(file, span) for span in _messages(file, *graph, (5, 8))}
    found = {}
    # GraphProto.input: its name; its type, of a tensor, whose shape has dimensions with a value or a name
    for entry in _messages(file, *graph, (11,)):
        name = "".join(_text(file, span) for span in _messages(file, *entry, (1,)))
        dims: list[int | str] = []
        for start, end in _messages(file, *entry, (2, 1, 2, 1)):
            extent: int | str = ""
            for number, begin, stop in fields(file, start, end):
                if number == 1:
                    file.seek(begin)
                    value = _varint(file)
                    # A negative extent, here a large number, means unknown.
                    extent = value if value < _MAX_EXTENT else ""
                elif number == 2:
                    extent = _text(file, (begin, stop))
                file.seek(stop)
            dims.append(extent)
        if name not in weights:
            found[name] = tuple(dims)
    return found


def _text(file: IO[bytes], span: tuple[int, int]) -> str:
    file.seek(span[0])
    return file.read(span[1] - span[0]).decode(errors="replace")


def _messages(file: IO[bytes], start: int, end: int, path: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each message at this path of fields."""
    if not path:
        yield start, end
        return
    inner = [(begin, stop) for number, begin, stop in fields(file, start, end) if number == path[0]]
    for begin, stop in inner:
        yield from _messages(file, begin, stop, path[1:])


class MalformedMessage(ValueError):
    """The bytes aren't a protobuf message."""


def fields(file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the number of each field of a message, and the start and end of its value. Raises
    MalformedMessage."""
    file.seek(start)
    for _ in range(_MAX_FIELDS):
        if file.tell() == end:
            return
        tag = _varint(file)
        number, kind = tag >> 3, tag & 7
        if number == 0 or (number == _GRAPH_FIELD and start == 0 and kind != _BYTES):
            raise MalformedMessage("its bytes follow another format")
        begin = file.tell()
        if kind == _VARINT:
            _varint(file)
            stop = file.tell()
        elif kind == _BYTES:
            length = _varint(file)
            begin = file.tell()
            stop = begin + length
        elif kind in _WIDTHS:
            stop = begin + _WIDTHS[kind]
        else:
            raise MalformedMessage("its bytes follow another format")
        if stop > end:
            raise MalformedMessage("it is cut short")
        yield number, begin, stop
        file.seek(stop)
    raise MalformedMessage("its bytes follow another format")


def _varint(file: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = file.read(1)
        if not byte:
            raise MalformedMessage("it is cut short")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise MalformedMessage("its bytes follow another format")
