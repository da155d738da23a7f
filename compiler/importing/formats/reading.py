"""Read a model's file of any format."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Mapping
from typing import IO, Any

from compiler.importing.formats import exported_program, onnx_model, stablehlo_model, tflite_model, tvm_module
from compiler.importing.formats.model_file import Content, ModelFile, Reader
from compiler.importing.spec import ModelError, Shape
from core.model_format import ModelFormat, UnknownFormat, recognise

READERS: Mapping[ModelFormat, Reader] = {
    ModelFormat.ONNX: onnx_model.read,
    ModelFormat.ONNX_ARCHIVE: onnx_model.read_with_weights,
    ModelFormat.EXPORTED_PROGRAM: exported_program.read,
    ModelFormat.TFLITE: tflite_model.read,
    ModelFormat.STABLEHLO: stablehlo_model.read,
    ModelFormat.TVM: tvm_module.read,
}


def read_model(data: bytes | IO[bytes], shapes: Mapping[str, Shape]) -> ModelFile:
    """Read a model. Its content decides the format. `shapes` has the shapes of dynamic inputs, by name.

    A file is mapped into memory. Raises ModelError. TVM's importers are native code, so read untrusted files
    in a child process (see compiler.children.child).
    """
    content, format_ = opened(data)
    return READERS[format_](content, shapes)


def opened(data: bytes | IO[bytes]) -> tuple[Content, ModelFormat]:
    """Return the content of a model's file, mapped into memory, and its format. Raises ModelError."""
    if isinstance(data, bytes):
        content: Content = data
    else:
        size = os.fstat(data.fileno()).st_size
        content = mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    try:
        file: Any = io.BytesIO(content) if isinstance(content, bytes) else content
        return content, recognise(file)
    except UnknownFormat as error:
        raise ModelError(f"the model can't be read. {error}") from error
