"""ONNX files, and archives of one with the files of its weights."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler.importing.formats.model_file import Content
from compiler.importing.model import RelaxModel, import_file
from compiler.importing.onnx_file import OnnxFile, read_archive, read_file
from compiler.importing.spec import Shape, TensorSpec


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX model that was read."""

    file: OnnxFile

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.file.inputs

    def to_relax(self) -> RelaxModel:
        return import_file(self.file)


def read(content: Content, shapes: Mapping[str, Shape]) -> OnnxModel:
    return OnnxModel(read_file(content if isinstance(content, bytes) else bytes(content), shapes))


def read_with_weights(content: Content, shapes: Mapping[str, Shape]) -> OnnxModel:
    file: Any = io.BytesIO(content) if isinstance(content, bytes) else content
    return OnnxModel(read_archive(memoryview(content), file, shapes))
