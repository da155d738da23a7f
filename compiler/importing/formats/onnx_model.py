"""ONNX files, and archives of one with the files of its weights."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from compiler.importing.decoders import keep_cache
from compiler.importing.formats.model_file import Content
from compiler.importing.model import RelaxModel, import_file
from compiler.importing.onnx_file import OnnxFile, checked, parse, parse_archive
from compiler.importing.spec import Shape, TensorSpec


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX model that was read. `read_function` reads it again without keeping a decoder's cache in place:
    as a function that takes and returns the cache.
    """

    file: OnnxFile
    read_function: Callable[[], OnnxFile]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.file.inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.file.output_names

    def as_function(self) -> OnnxModel:
        """Return the model as a function that takes and returns a decoder's cache. Raises ModelError."""
        return self if self.file.cache is None else OnnxModel(self.read_function(), self.read_function)

    def to_relax(self) -> RelaxModel:
        return import_file(self.file)


def read(content: Content, shapes: Mapping[str, Shape]) -> OnnxModel:
    return _read(parse(content if isinstance(content, bytes) else bytes(content)), shapes, {})


def read_with_weights(content: Content, shapes: Mapping[str, Shape]) -> OnnxModel:
    file: Any = io.BytesIO(content) if isinstance(content, bytes) else content
    proto, weights = parse_archive(memoryview(content), file)
    return _read(proto, shapes, weights)


def _read(
    proto: onnx.ModelProto, shapes: Mapping[str, Shape], weights: Mapping[str, NDArray[Any]]
) -> OnnxModel:
    return OnnxModel(keep_cache(proto, shapes, weights), lambda: checked(proto, shapes, weights))
