"""Weights of less than a byte, as in quantized language models, in the model's file or in another one."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.importing import onnx_file
from compiler.importing.model import import_file
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported
from compiler.verifying.reference import Reference
from tests.models_by_format import packed

DEPTH, COLUMNS, BLOCK = 32, 6, 16
WEIGHT = np.random.default_rng(0).integers(-8, 8, (DEPTH, COLUMNS)).astype(np.int8)
WEIGHT_BYTES = ((WEIGHT.reshape(-1, 2) & 15) @ [1, 16]).astype(np.uint8).tobytes()


def quantized(data: bytes | None) -> onnx.ModelProto:
    """A product with four-bit weights and a scale for each block of a column. The file holds `data`;
    with None, they are in another file."""
    weight = onnx.TensorProto(name="weight", data_type=onnx.TensorProto.INT4, dims=WEIGHT.shape)
    if data is None:
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="weights")
    else:
        weight.raw_data = data
    scale = np.linspace(0.1, 0.5, 2 * COLUMNS, dtype=np.float32).reshape(2, COLUMNS)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["weight", "scale"], ["w"], axis=0, block_size=BLOCK),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "quantized",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, DEPTH))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, COLUMNS))],
        [weight, numpy_helper.from_array(scale, "scale")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def read(weights: bytes) -> onnx_file.OnnxFile:
    archive = packed({"model.onnx": quantized(None).SerializeToString(), "weights": weights})
    return onnx_file.read_archive(memoryview(archive), io.BytesIO(archive), {})


@pytest.mark.parametrize("most", [1, onnx_file.MAX_INLINE_BYTES])
def test_four_bit_weights_in_another_file_are_read(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(onnx_file, "MAX_INLINE_BYTES", most)
    file = read(WEIGHT_BYTES)
    inputs = {"x": np.random.default_rng(1).standard_normal((2, DEPTH)).astype(np.float32)}
    whole = quantized(WEIGHT_BYTES)
    wanted = Reference(whole, ["y"]).compute(inputs)["y"]
    found = Imported(import_file(file), '{"kind":"llvm","num-cores":1}').compute(inputs)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    np.testing.assert_allclose(Reference(file.proto, ["y"]).compute({**inputs, **file.weights})["y"], wanted)


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"should be 96 bytes from byte 0 .* which has 95"):
        read(WEIGHT_BYTES[:-1])
