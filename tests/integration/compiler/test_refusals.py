"""Errors of import and compilation are plain: which node, why, and what to do."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from compiler.children.models import CompileRequest, FusedModel, compile_untuned
from compiler.importing import legalization, model
from compiler.importing.failing_node import failing_node_error
from compiler.importing.model import fuse_untuned, import_file, read_onnx
from compiler.importing.onnx_file import read_file
from compiler.importing.spec import CompileError, ModelError
from compiler.packaging.artifact import ArtifactError
from tests.tflite_models import TfliteBuilder

Array = NDArray[Any]
TARGET = '{"kind":"llvm","num-cores":1}'
# Internal names of TVM and Python, and TVM's dumps of objects.
FOREIGN = re.compile(
    r"TVM|tvm|relax|PrimType|StructInfo|NoneType|InternalError|Check failed|datatype|operator\(s\)"
    r"|\blv\d|\bR\.|\bT\.|\bir\.|span=|dtype=|object has no|not iterable|0x[0-9a-f]{6}"
)


def model_of(kind: str, inputs: Sequence[Array], constants: Sequence[Array], **attributes: Any) -> bytes:
    opset = attributes.pop("opset", 23)
    given = {f"x{k}": array for k, array in enumerate(inputs)}
    fixed = {f"c{k}": array for k, array in enumerate(constants)}
    node = helper.make_node(kind, [*given, *fixed], ["y"], name="here", **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    graph = helper.make_graph(
        [node],
        "one",
        values,
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(made.SerializeToString())


def floats(*shape: int, dtype: str = "float32") -> Array:
    return np.zeros(shape, dtype)


REFUSED: Mapping[str, tuple[bytes, str]] = {
    "two types": (
        model_of("Add", [floats(3, dtype="float16"), floats(3)], []),
        "'x0' is float16 and 'x1' is float32, and ONNX wants one type: add a Cast",
    ),
    "bytes divided by int64": (
        model_of("Div", [floats(3, dtype="uint8")], [np.array(3)]),
        "'x0' is uint8 and 'c0' is int64, and ONNX wants one type: add a Cast",
    ),
    "shapes of a product": (
        model_of("MatMul", [floats(2, 3), floats(4, 5)], []),
        "ONNX doesn't allow its inputs: incompatible dimensions for matrix multiplication",
    ),
    "channels": (
        model_of("Conv", [floats(1, 3, 5, 5), floats(4, 2, 3, 3)], []),
        "the data has 3 channels, and the weights are for 2",
    ),
    "an extent": (
        model_of("Reshape", [floats(2, 3)], [np.array([4, 2])]),
        "6 elements don't fit the shape (4, 2)",
    ),
    "a permutation": (
        model_of("Transpose", [floats(2, 3)], [], perm=[0, 2]),
        "invalid attribute perm {0, 2}",
    ),
    "a spectrum of another length": (
        model_of("DFT", [floats(2, 6, 2)], [np.array(4)], inverse=1, onesided=1),
        "the inverse of 6 frequencies has no 4 points: give 3 of them",
    ),
    "an equation": (
        model_of("Einsum", [floats(2, 3)], [], equation="ij->i!"),
        "it isn't supported for these attributes (equation='ij->i!')",
    ),
    "a softmax of integers": (
        model_of("Softmax", [floats(4, dtype="int64")], []),
        "'x0' is int64, and Softmax takes bfloat16, double, float, float16 there: add a Cast",
    ),
    "a condition of floats": (
        model_of("Where", [floats(3)] * 3, []),
        "'x0' is float32, and Where takes bool there: add a Cast",
    ),
    "a part that isn't there": (
        model_of("Gather", [floats(2, 3)], [np.array([0, 5])], axis=0),
        "its indices are from 0 to 5, and axis 0 has 2 parts",
    ),
    "a grid of volumes": (
        model_of("GridSample", [floats(1, 1, 2, 2), floats(1, 2, 2, 3)], [], opset=20),
        "its grid has 3 coordinates for 2 axes of the data",
    ),
    "values of several lengths": (
        model_of("Attention", [floats(1, 2, 3, 4), floats(1, 2, 3, 5), floats(1, 2, 3, 5)], []),
        "(1, 2, 1, 3, 5)",
    ),
    "a shape that the data gives": (
        model_of("Reshape", [floats(2, 3), np.array([6])], []),
        "'x1' decides the shape of its result, and must be a constant of the model",
    ),
    "a grid whose size the data gives": (
        model_of("AffineGrid", [floats(1, 2, 3), np.array([1, 1, 2, 2])], [], opset=20),
        "the size must be a constant of the model",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_in_plain_words(name: str) -> None:
    data, reason = REFUSED[name]
    with pytest.raises(ModelError) as raised:
        read_onnx(data, {})
    message = str(raised.value)
    assert re.match(r"operator \w+ \(version \d+\) of node 'here' can't be imported: ", message)
    assert reason in message
    assert message.endswith("Change or replace the node and export the model again")
    assert not FOREIGN.search(message)


NEVER: Mapping[str, tuple[bytes, str]] = {
    "a sequence": (
        model_of("SplitToSequence", [floats(4)], [np.array(2)]),
        "sequences aren't supported. Pass the tensors themselves: use Split and Concat",
    ),
    "an optional value": (
        model_of("Optional", [floats(4)], []),
        "optional values aren't supported. Pass the tensor itself",
    ),
    "random numbers": (
        model_of("RandomNormalLike", [floats(4)], []),
        "its outputs are random. Draw the numbers outside of the model, and make them an input",
    ),
    "an encoded image": (
        model_of("ImageDecoder", [floats(4, dtype="uint8")], []),
        "encoded images aren't supported. Decode the image before the model, and pass its pixels",
    ),
}


@pytest.mark.parametrize("name", NEVER)
def test_a_refusal_of_an_operator_that_no_importer_knows_says_why(name: str) -> None:
    data, reason = NEVER[name]
    with pytest.raises(ModelError, match=rf"of node 'here' can't be imported: {reason}$"):
        read_onnx(data, {})


def three_nodes() -> bytes:
    """The second of three nodes, Sign, can't be compiled here."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        helper.make_node("Sign", ["a"], ["b"], name="culprit"),
        helper.make_node("Exp", ["b"], ["y"], name="last"),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "three", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def test_a_node_without_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise tvm.error.InternalError("Check failed: type code 0x7f of T.float32 has no R.sign")

    monkeypatch.setitem(legalization._LEGALIZATIONS, "relax.sign", fail)
    file = read_file(three_nodes(), {})
    with pytest.raises(CompileError) as raised:
        fuse_untuned(import_file(file), TARGET)
    assert not FOREIGN.search(str(raised.value))
    message = str(failing_node_error(raised.value, file, lambda part: model.fuse(part, TARGET)))
    assert message == (
        "operator Sign (version 13) of node 'culprit' can't be compiled: no code can be generated for its "
        "types and shapes on this target. Change or replace the node and export the model again"
    )


def tflite_nodes() -> bytes:
    builder = TfliteBuilder()
    x, first, second, result = builder.input((4,)), *(builder.tensor((4,)) for _ in range(3))
    for kind, given, made in (("EXP", x, first), ("FLOOR", first, second), ("EXP", second, result)):
        builder.op(kind, [given], [made])
    return builder.model([result])


def stablehlo_nodes() -> bytes:
    operations = [
        f'%{made} = stablehlo.{kind} %{given} : tensor<4xf32> loc("{made}")'
        for kind, given, made in (
            ("exponential", "x", "a"),
            ("floor", "a", "culprit"),
            ("sine", "culprit", "y"),
        )
    ]
    head = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {"
    return "\n".join(["module {", head, *operations, "return %y : tensor<4xf32>", "}", "}"]).encode()


def exported_nodes() -> bytes:
    torch = pytest.importorskip("torch")

    class Culprit(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, x: Any) -> Any:
            return torch.floor(x)

    network = torch.nn.Sequential(torch.nn.Tanh(), Culprit(), torch.nn.Softsign())
    file = io.BytesIO()
    torch.export.save(torch.export.export(network, (torch.zeros(4),)), file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("made", "described"),
    [
        (tflite_nodes, r"floor in operator 1 \(FLOOR\), which computes 't2', "),
        (stablehlo_nodes, "floor in the operation at 'culprit' "),
        (exported_nodes, "floor in module '1' "),
    ],
)
def test_an_operator_without_code_is_named(
    monkeypatch: pytest.MonkeyPatch, made: Callable[[], bytes], described: str
) -> None:
    def fail(*_: object) -> None:
        raise tvm.error.InternalError("Check failed: type code 0x7f of T.float32 has no R.floor")

    monkeypatch.setitem(legalization._LEGALIZATIONS, "relax.floor", fail)
    with pytest.raises(
        ModelError, match=f"^{described}can't be compiled: no code can be generated"
    ) as raised:
        FusedModel.of(CompileRequest(made(), {}, TARGET))
    assert not FOREIGN.search(str(raised.value))


@pytest.mark.slow
def test_a_type_that_onnx_does_not_allow_is_refused_in_plain_words() -> None:
    """Through the child process that compiles models: only the code generator sees what is wrong."""
    data = model_of("Relu", [np.zeros(3, bool)], [])
    with pytest.raises(
        ArtifactError, match="the model can't be compiled: no code can be generated"
    ) as raised:
        compile_untuned(data, {}, TARGET, io.BytesIO())
    assert not FOREIGN.search(str(raised.value))
