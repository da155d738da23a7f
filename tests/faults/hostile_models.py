"""Model files that attack a service. Each upload is rejected, or fails its own job with a reason."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile

import onnx
from onnx import TensorProto, helper

from tests.tar_blocks import DIGITS

# The text that a model's code would write if it ran.
CODE_RAN = "code of a model ran"
_MIB = 1 << 20


class _Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, (f"raise RuntimeError({CODE_RAN!r})",))


def _onnx(
    *nodes: onnx.NodeProto, weights: tuple[TensorProto, ...] = (), shape: tuple[int, ...] = (4,)
) -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "hostile", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    data: bytes = model.SerializeToString()
    return data


def _elsewhere() -> bytes:
    """Return a model whose weights refer to a file on the service's machine."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../../../etc/passwd")
    return _onnx(helper.make_node("Add", ["x", "w"], ["y"]), weights=(weight,))


def _nested(depth: int = 2000) -> bytes:
    """Return a model whose graph is nested deeper than a parser's stack."""
    data = b"\x0a\x00"
    for _ in range(depth):
        # NodeProto.attribute (5), AttributeProto.g (6), GraphProto.node (1)
        for field in (1, 6, 5):
            data = bytes([field << 3 | 2]) + _varint(len(data)) + data
    graph = b"\x0a" + _varint(len(data)) + data
    return b"\x08\x09\x3a" + _varint(len(graph)) + graph


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def _huge() -> bytes:
    """Return a model of a kilobyte that computes a tensor of many terabytes."""
    shape = helper.make_tensor("s", TensorProto.INT64, [3], [1 << 20, 1 << 20, 1 << 10])
    return _onnx(
        helper.make_node("Expand", ["x", "s"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["y"]),
        weights=(shape,),
    )


def _zip(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _tables() -> bytes:
    """Return a TFLite file whose tables point at each other and beyond the end."""
    return b"\x10\x00\x00\x00TFL3" + struct.pack("<40i", *range(-20, 20)) + b"\xff" * 400


def hostile() -> dict[str, bytes]:
    """Return the files by name."""
    return {
        "tar.onnx": DIGITS,
        "elsewhere.onnx": _elsewhere(),
        "nested.onnx": _nested(),
        "huge.onnx": _huge(),
        "negative.onnx": _onnx(helper.make_node("Relu", ["x"], ["y"]), shape=(-5, 1 << 62)),
        "loop.onnx": _onnx(helper.make_node("Relu", ["y"], ["y"])),
        "pickle.pt2": _zip({"m/models/model.json": b"{}", "m/data.pkl": pickle.dumps(_Command())}),
        "inputs.pt2": _zip(
            {"m/models/model.json": b"{}", "m/data/sample_inputs/model.pt": pickle.dumps(_Command())}
        ),
        "name.pt2": _zip({"m/models/model.json": b'{"name": "x=__import__(\'os\').abort()"}'}),
        "bomb.pt2": _zip({"m/models/model.json": bytes(200 * _MIB)}),
        "deep.pt2": _zip({"m/models/model.json": b"[" * _MIB}),
        "call.mlir": b"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
        b"  %y = stablehlo.custom_call @system(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
        b"  return %y : tensor<4xf32>\n}\n",
        "deep.mlir": b"module {" * 100_000,
        "bytes.mlirbc": b"ML\xefR\x0dStableHLO_v1.15.0" + bytes(range(256)) * 40,
        "tables.tflite": _tables(),
        "zeros.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(4096),
        "deep.json": b'{"root_index": 0, "nodes": ' + b"[" * 200_000,
        "module.json": json.dumps(
            {"root_index": 2**62, "nodes": [{"type": "ir.IRModule", "data": -1}]}
        ).encode(),
    }
