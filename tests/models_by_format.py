"""One small model in every supported format, with its input shapes and its function."""

from __future__ import annotations

import importlib
import io
import tarfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax, te, tirx, topi

from compiler.importing.formats.tvm_module import to_json
from tests.onnx_models import Builder

Array = NDArray[Any]
SIZE = 600
WEIGHT = (np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE) % 7 - 3) / 10


@dataclass(frozen=True)
class Sample:
    """A file that computes relu(x @ WEIGHT), and whether another runtime can verify it."""

    data: bytes
    verified: bool = True


def onnx_model() -> Sample:
    return Sample(_proto().SerializeToString())


def onnx_archive(files: Mapping[str, bytes] | None = None) -> Sample:
    proto = _proto()
    tensor = proto.graph.initializer[0]
    content = tensor.raw_data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": "64", "length": str(len(content))}.items():
        tensor.external_data.add(key=key, value=value)
    return Sample(
        packed({"model.onnx": proto.SerializeToString(), **(files or {"weights.bin": bytes(64) + content})})
    )


def packed(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _proto() -> onnx.ModelProto:
    b = Builder()
    weight = b.constant(WEIGHT)
    result = b.op("Relu", b.op("MatMul", "x", weight))
    return onnx.load_from_string(b.model({"x": [1, SIZE]}, {result: [1, SIZE]}))


def exported_program() -> Sample:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.from_numpy(WEIGHT))

        def forward(self, x: Any) -> Any:
            return torch.relu(x @ self.weight)

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(Network(), (torch.zeros(1, SIZE),)), buffer)
    return Sample(buffer.getvalue())


def tflite_model() -> Sample:
    tflite = pytest.importorskip("tflite")
    builder = importlib.import_module("flatbuffers").Builder(0)

    def vector(of: str, start: Callable[[Any, int], Any], items: Sequence[int]) -> int:
        start(builder, len(items))
        for item in reversed(items):
            getattr(builder, f"Prepend{of}")(item)
        return int(builder.EndVector())

    def tensor(name: str, shape: Sequence[int], buffer: int) -> int:
        text, extents = builder.CreateString(name), vector("Int32", tflite.TensorStartShapeVector, shape)
        tflite.TensorStart(builder)
        tflite.TensorAddShape(builder, extents)
        tflite.TensorAddBuffer(builder, buffer)
        tflite.TensorAddName(builder, text)
        return int(tflite.TensorEnd(builder))

    content = builder.CreateByteVector(np.ascontiguousarray(WEIGHT.T).tobytes())
    buffers = []
    for data in (None, content):
        tflite.BufferStart(builder)
        if data is not None:
            tflite.BufferAddData(builder, data)
        buffers.append(tflite.BufferEnd(builder))
    tensors = [tensor("x", (1, SIZE), 0), tensor("weight", (SIZE, SIZE), 1), tensor("y", (1, SIZE), 0)]
    tflite.FullyConnectedOptionsStart(builder)
    tflite.FullyConnectedOptionsAddFusedActivationFunction(builder, tflite.ActivationFunctionType.RELU)
    options = tflite.FullyConnectedOptionsEnd(builder)
    read = vector("Int32", tflite.OperatorStartInputsVector, (0, 1, -1))
    written = vector("Int32", tflite.OperatorStartOutputsVector, (2,))
    tflite.OperatorStart(builder)
    tflite.OperatorAddInputs(builder, read)
    tflite.OperatorAddOutputs(builder, written)
    tflite.OperatorAddBuiltinOptionsType(builder, tflite.BuiltinOptions.FullyConnectedOptions)
    tflite.OperatorAddBuiltinOptions(builder, options)
    operators = vector("UOffsetTRelative", tflite.SubGraphStartOperatorsVector, [tflite.OperatorEnd(builder)])
    held = vector("UOffsetTRelative", tflite.SubGraphStartTensorsVector, tensors)
    inputs = vector("Int32", tflite.SubGraphStartInputsVector, (0,))
    outputs = vector("Int32", tflite.SubGraphStartOutputsVector, (2,))
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddTensors(builder, held)
    tflite.SubGraphAddInputs(builder, inputs)
    tflite.SubGraphAddOutputs(builder, outputs)
    tflite.SubGraphAddOperators(builder, operators)
    graphs = vector("UOffsetTRelative", tflite.ModelStartSubgraphsVector, [tflite.SubGraphEnd(builder)])
    kind = tflite.BuiltinOperator.FULLY_CONNECTED
    tflite.OperatorCodeStart(builder)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(builder, kind)
    tflite.OperatorCodeAddBuiltinCode(builder, kind)
    tflite.OperatorCodeAddVersion(builder, 1)
    codes = vector(
        "UOffsetTRelative", tflite.ModelStartOperatorCodesVector, [tflite.OperatorCodeEnd(builder)]
    )
    stored = vector("UOffsetTRelative", tflite.ModelStartBuffersVector, buffers)
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddOperatorCodes(builder, codes)
    tflite.ModelAddSubgraphs(builder, graphs)
    tflite.ModelAddBuffers(builder, stored)
    builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")
    return Sample(bytes(builder.Output()))


def stablehlo_program() -> Sample:
    kinds = f"tensor<1x{SIZE}xf32>", f"tensor<{SIZE}x{SIZE}xf32>"
    text = f"""
    module @relu {{
      func.func public @main(%arg0: {kinds[0]} loc("x")) -> {kinds[0]} {{
        %weight = stablehlo.constant dense<"0x{WEIGHT.tobytes().hex()}"> : {kinds[1]}
        %zero = stablehlo.constant dense<0.0> : {kinds[0]}
        %0 = stablehlo.dot_general %arg0, %weight, contracting_dims = [1] x [0]
          : ({kinds[0]}, {kinds[1]}) -> {kinds[0]}
        %1 = stablehlo.maximum %0, %zero : {kinds[0]}
        return %1 : {kinds[0]}
      }}
    }}
    """
    return Sample(text.encode())


def tvm_module() -> Sample:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, SIZE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            output = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(output)
    return Sample(to_json(builder.get()).encode(), verified=False)


def prim_func() -> tirx.PrimFunc:
    x = te.placeholder((1, SIZE), name="x")
    weight = topi.full((SIZE, SIZE), "float32", tvm.tirx.const(0.5, "float32"))
    return te.create_prim_func([x, topi.nn.relu(topi.matmul(x, weight))])


FORMATS: Mapping[str, Callable[[], Sample]] = {
    "onnx": onnx_model,
    "onnx archive": onnx_archive,
    "exported program": exported_program,
    "tflite": tflite_model,
    "stablehlo": stablehlo_program,
    "tvm module": tvm_module,
}
