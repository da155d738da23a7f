"""Build small TFLite models operator by operator."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]
_SUFFIX = {"bool": "BOOL", "complex64": "COMPLEX64", "bfloat16": "BFLOAT16"}


@dataclass(frozen=True)
class Quantization:
    """real = scale * (stored - zero_point), for each extent of an axis if there are several scales."""

    scale: float | Sequence[float]
    zero_point: int | Sequence[int] = 0
    axis: int = 0


class TfliteBuilder:
    """A model with one graph. Tensors are named by their positions."""

    def __init__(self) -> None:
        # The schema's classes are in the package that also has the interpreter.
        self.schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
        self._graph = self.schema.SubGraphT()
        self._graph.tensors, self._graph.operators = [], []
        self._graph.inputs = []
        self._buffers = [self.schema.BufferT()]
        self._codes: list[Any] = []

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        data: Array | None = None,
        quantization: Quantization | None = None,
    ) -> int:
        """Add a tensor; return its position."""
        tensor = self.schema.TensorT()
        tensor.name = f"t{len(self._graph.tensors)}"
        tensor.shape = list(shape)
        tensor.type = getattr(self.schema.TensorType, _SUFFIX.get(dtype, dtype.upper()))
        tensor.buffer = 0
        if data is not None:
            buffer = self.schema.BufferT()
            stored = _packed(data) if dtype == "int4" else np.ascontiguousarray(data)
            buffer.data = np.frombuffer(stored.tobytes(), np.uint8)
            tensor.buffer = len(self._buffers)
            self._buffers.append(buffer)
        if quantization is not None:
            tensor.quantization = self.schema.QuantizationParametersT()
            tensor.quantization.scale = np.atleast_1d(quantization.scale).astype(np.float32)
            zeros = np.broadcast_to(quantization.zero_point, tensor.quantization.scale.shape)
            tensor.quantization.zeroPoint = zeros.astype(np.int64)
            tensor.quantization.quantizedDimension = quantization.axis
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def input(
        self, shape: Sequence[int], dtype: str = "float32", quantization: Quantization | None = None
    ) -> int:
        position = self.tensor(shape, dtype, quantization=quantization)
        self._graph.inputs.append(position)
        return position

    def variable(self, shape: Sequence[int]) -> int:
        """Add a tensor that an operator keeps between its runs."""
        position = self.tensor(shape)
        self._graph.tensors[position].isVariable = True
        return position

    def signature(self, position: int, shape: Sequence[int]) -> None:
        """Make dimensions of a tensor dynamic (-1)."""
        self._graph.tensors[position].shapeSignature = list(shape)

    def rename(self, position: int, name: str) -> None:
        self._graph.tensors[position].name = name

    def constant(self, data: Array, quantization: Quantization | None = None) -> int:
        return self.tensor(data.shape, str(data.dtype), data, quantization)

    def op(
        self, name: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **fields: Any
    ) -> None:
        """Add an operator; `options` names the class of its attributes, `fields` are these."""
        schema = self.schema
        code = schema.OperatorCodeT()
        code.builtinCode = getattr(schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        code.version = fields.pop("version", 1)
        code.customCode = fields.pop("custom_code", None)
        operator = schema.OperatorT()
        operator.opcodeIndex = len(self._codes)
        self._codes.append(code)
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        if options:
            operator.builtinOptions = getattr(schema, f"{options}T")()
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            for field, value in fields.items():
                assert hasattr(operator.builtinOptions, field), field
                setattr(operator.builtinOptions, field, value)
        self._graph.operators.append(operator)

    def model(self, outputs: Sequence[int]) -> bytes:
        self._graph.outputs = list(outputs)
        model = self.schema.ModelT()
        model.version = 3
        model.operatorCodes, model.subgraphs, model.buffers = self._codes, [self._graph], self._buffers
        builder = importlib.import_module("flatbuffers").Builder(0)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def _packed(data: Array) -> Array:
    """Return integers of 4 bits two in a byte, the first in the lower bits."""
    flat = data.astype(np.int8).view(np.uint8).ravel() & 15
    pairs = np.append(flat, np.zeros(flat.size % 2, np.uint8)).reshape(-1, 2)
    packed: Array = pairs[:, 0] | pairs[:, 1] << 4
    return packed
