"""The cheap check of uploaded files tells ONNX models from other formats."""

from __future__ import annotations

import io

import onnx
import pytest
from onnx import TensorProto, helper

from server.api.onnx_file import rejection_reason


def model() -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    made: onnx.ModelProto = helper.make_model(graph)
    return made.SerializeToString()


def test_a_model_passes() -> None:
    assert rejection_reason(io.BytesIO(model())) == ""


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_truncated_model_is_rejected(cut: int) -> None:
    assert "not an ONNX file" in rejection_reason(io.BytesIO(model()[:-cut]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a zip archive", "not an ONNX file"),
        (b"\x7fELF\x02\x01\x01", "not an ONNX file"),
        (b"<html>not found</html>", "not an ONNX file"),
        (b"{}", "not an ONNX file"),
        (b"\x00" * 100, "not an ONNX file"),
        (b"\xff" * 100, "not an ONNX file"),
        (b"\x08\x07", "no graph"),
        (b"\x38\x07", "not an ONNX file"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not an ONNX file"),
        (b"\x08\x01" * 200_000, "not an ONNX file"),
    ],
)
def test_other_formats_are_rejected(data: bytes, why: str) -> None:
    assert why in rejection_reason(io.BytesIO(data))
