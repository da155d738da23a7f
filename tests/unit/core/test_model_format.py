"""The format of a model is recognized by its content."""

from __future__ import annotations

import io
import struct
import zipfile

import onnx
import pytest
from onnx import TensorProto, helper

from core.model_format import (
    MalformedMessage,
    ModelFormat,
    UnknownFormat,
    exported_artifact,
    external_files,
    input_dimensions,
    recognise,
)
from tests.onnx_models import rectifier


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return buffer.getvalue()


def jax_exported(artifact: bytes) -> bytes:
    """Return a table of jax.export with only the field of the artifact."""
    offsets = [0] * 13 + [4]
    fields = struct.pack("<16H", 32, 8, *offsets)
    table = struct.pack("<iI", len(fields), 4)
    return struct.pack("<I", 4 + len(fields)) + fields + table + struct.pack("<I", len(artifact)) + artifact


def test_the_program_that_jax_exports_is_found() -> None:
    artifact = b"ML\xefR\x0dStableHLO_v1.15.0" + bytes(range(9))
    data = jax_exported(artifact) + b"more"
    found = exported_artifact(io.BytesIO(data))
    assert found is not None
    assert data[found] == artifact
    for end in range(found.start):
        assert exported_artifact(io.BytesIO(data[:end])) is None
    assert exported_artifact(io.BytesIO(jax_exported(b"TFL3"))) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (rectifier(), ModelFormat.ONNX),
        (zipped("m/models/rectifier.json"), ModelFormat.EXPORTED_PROGRAM),
        (b"\x1c\x00\x00\x00TFL3 and tables", ModelFormat.TFLITE),
        (b"ML\xefR\x0dStableHLO_v1.15.0", ModelFormat.STABLEHLO),
        (b"module @jit_f attributes {", ModelFormat.STABLEHLO),
        (b"// of JAX\n\n#loc1 = loc(unknown)\nmodule", ModelFormat.STABLEHLO),
        (b"func.func @main(", ModelFormat.STABLEHLO),
        (b'"builtin.module"() ({', ModelFormat.STABLEHLO),
        (jax_exported(b"ML\xefR\x0dStableHLO_v1.15.0"), ModelFormat.STABLEHLO),
        (b'{"root_index":1,"nodes":[', ModelFormat.TVM),
        (b'{\n "root_index": 1', ModelFormat.TVM),
    ],
)
def test_each_format_is_recognized_by_its_content(data: bytes, expected: ModelFormat) -> None:
    assert recognise(io.BytesIO(data)) is expected


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_truncated_model_is_refused(cut: int) -> None:
    with pytest.raises(UnknownFormat, match="not an ONNX file"):
        recognise(io.BytesIO(rectifier()[:-cut]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a zip archive", "damaged zip"),
        (zipped("rectifier/data.pkl", "rectifier/code/net.py"), "TorchScript"),
        (zipped("photo.png"), "not a program of torch.export"),
        (b"a.tar".ljust(257, b"\0") + b"ustar\x0000", "tar archive"),
        (b"\x7fELF\x02\x01\x01", "not an ONNX file"),
        (b"<html>not found</html>", "not an ONNX file"),
        (b"#!/bin/sh", "not an ONNX file"),
        (b"# modules of the network", "not an ONNX file"),
        (b"{}", "not an ONNX file"),
        (b"\x00" * 100, "not an ONNX file"),
        (b"\xff" * 100, "not an ONNX file"),
        (b"\x08\x07", "no graph"),
        (b"\x38\x07", "not an ONNX file"),
        (b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not an ONNX file"),
        (b"\x08\x01" * 200_000, "not an ONNX file"),
    ],
)
def test_unknown_formats_are_rejected(data: bytes, why: str) -> None:
    with pytest.raises(UnknownFormat, match=why):
        recognise(io.BytesIO(data))


def test_the_files_of_weights_are_found() -> None:
    assert external_files(io.BytesIO(rectifier())) == {}
    found = external_files(io.BytesIO(rectifier("a.bin", "b/c.bin", "a.bin")))
    assert found == {"a.bin": [(12, 512), (12, 512)], "b/c.bin": [(12, 512)]}


def test_the_files_of_constants_within_nodes_are_found() -> None:
    """Of nodes in the graph, in a graph within a node, and in a function."""

    def constant(name: str) -> onnx.NodeProto:
        tensor = onnx.TensorProto(name=name, data_type=1, data_location=onnx.TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=name)
        return helper.make_node("Constant", [], [name], value=tensor)

    body = helper.make_graph([constant("inner")], "body", [], [])
    graph = helper.make_graph(
        [constant("outer"), helper.make_node("If", ["c"], ["y"], then_branch=body)], "g", [], []
    )
    function = helper.make_function("own", "F", [], ["y"], [constant("called")], [])
    data = helper.make_model(graph, functions=[function]).SerializeToString()
    assert sorted(external_files(io.BytesIO(data))) == ["called", "inner", "outer"]


def test_graphs_that_are_nested_without_end_are_refused() -> None:
    graph = helper.make_graph([], "g", [], [])
    for _ in range(33):
        graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], then_branch=graph)], "g", [], [])
    with pytest.raises(MalformedMessage, match="nested too deeply"):
        external_files(io.BytesIO(helper.make_model(graph).SerializeToString()))


def test_the_dimensions_of_inputs_are_read() -> None:
    ends = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", 16, None, 300]),
        helper.make_tensor_value_info("scalar", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, ["m"]),
        helper.make_tensor_value_info("negative", TensorProto.FLOAT, [-1, 3]),
    ]
    graph = helper.make_graph([], "graph", ends, [])
    graph.initializer.add(name="w")
    file = io.BytesIO(helper.make_model(graph).SerializeToString())
    assert input_dimensions(file) == {"ids": ("n", 16, "", 300), "scalar": (), "negative": ("", 3)}
