from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.importing.onnx_file import read_file
from compiler.importing.spec import ModelError
from tests.onnx_models import Builder, residual


def _changed(change: Callable[[onnx.ModelProto], object], data: bytes | None = None) -> bytes:
    model = onnx.load_from_string(residual() if data is None else data)
    change(model)
    return bytes(model.SerializeToString())


def test_a_static_model_needs_no_shapes() -> None:
    file = read_file(residual(), {})
    assert [(spec.name, spec.shape, spec.dtype) for spec in file.inputs] == [
        ("input", (1, 3, 8, 8), "float32")
    ]
    assert file.opsets == {"": 17}


def test_dynamic_dimensions_take_the_shape_given() -> None:
    file = read_file(residual(batch="batch"), {"input": (4, 3, 8, 8)})
    assert file.inputs[0].shape == (4, 3, 8, 8)
    written = file.proto.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in written] == [4, 3, 8, 8]


def test_a_negative_extent_is_unknown() -> None:
    model = onnx.load_from_string(residual())
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert read_file(model.SerializeToString(), {"input": (4, 3, 8, 8)}).inputs[0].shape == (4, 3, 8, 8)
    with pytest.raises(ModelError, match=r"dynamic dimensions \(\?,3,8,8\)"):
        read_file(model.SerializeToString(), {})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({}, r"input 'input' has dynamic dimensions \(\?,3,8,8\).*--shape input=1,3,8,8"),
        ({"input": (1, 3, 8)}, r"shape \(1,3,8\) doesn't fit input 'input'.*\(\?,3,8,8\)"),
        ({"input": (1, 4, 8, 8)}, r"shape \(1,4,8,8\) doesn't fit"),
        ({"input": (0, 3, 8, 8)}, "every dimension must be positive"),
        ({"input": (-1, 3, 8, 8)}, "every dimension must be positive"),
        ({"input": (1 << 40, 3, 8, 8)}, "the limit is"),
        ({"image": (1, 3, 8, 8)}, "no input 'image'; its inputs are: input"),
    ],
)
def test_missing_and_wrong_shapes_are_named(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_file(residual(batch="batch"), shapes)


def _move_a_weight_outside(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def _hide_external_data_in_a_node(model: onnx.ModelProto) -> None:
    value = numpy_helper.from_array(np.zeros(2, np.float32), "hidden")
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value="/etc/passwd")
    model.graph.node.append(helper.make_node("Constant", [], ["unused"], name="c", value=value))


def _set_number(name: str, number: int) -> Callable[[onnx.ModelProto], None]:
    """Set an attribute of the first convolution."""

    def change(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.op_type == "Conv")
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        value = number if name == "group" else [number] * 2
        node.attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def _make_the_input_a_sequence(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.ClearField("tensor_type")
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


def _make_the_input_hold(kind: int) -> Callable[[onnx.ModelProto], None]:
    return lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", kind)


def _add_sparse_weights(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


def _hide_sparse_weights_in_a_node(model: onnx.ModelProto) -> None:
    node = helper.make_node("Constant", [], ["unused"])
    node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR).sparse_tensor.dims.append(
        2
    )
    model.graph.node.append(node)


def _add_function(model: onnx.ModelProto, name: str, *nodes: onnx.NodeProto) -> None:
    """Add a function that computes `y` from `x`."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", name, ["x"], ["y"], nodes, imports))


def _call(name: str, data: str, result: str) -> onnx.NodeProto:
    return helper.make_node(name, [data], [result], domain="own")


def _double(depth: int) -> Callable[[onnx.ModelProto], None]:
    """Add functions that each call the one before twice: 2**depth operators in all."""

    def change(model: onnx.ModelProto) -> None:
        _add_function(model, "f0", helper.make_node("Relu", ["x"], ["y"]))
        for level in range(depth):
            callee = f"f{level}"
            _add_function(model, f"f{level + 1}", _call(callee, "x", "half"), _call(callee, "half", "y"))
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node.append(_call(f"f{depth}", "input", "doubled"))

    return change


def _call_in_a_circle(model: onnx.ModelProto) -> None:
    _add_function(model, "f", _call("g", "x", "y"))
    _add_function(model, "g", _call("f", "x", "y"))


def _add_two_of_one_name(model: onnx.ModelProto) -> None:
    for operator in ("Relu", "Tanh"):
        _add_function(model, "f", helper.make_node(operator, ["x"], ["y"]))


def _hide_external_data_in_a_function(model: onnx.ModelProto) -> None:
    value = numpy_helper.from_array(np.zeros(2, np.float32), "hidden")
    value.data_location = TensorProto.EXTERNAL
    value.external_data.add(key="location", value="weights")
    _add_function(model, "f", helper.make_node("Constant", [], ["y"], value=value))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"GIF89a" + bytes(100), "not an ONNX model"),
        (b"\x08\x08", "no ONNX graph"),
        (residual()[:-7], "truncated"),
        (_changed(lambda m: m.ClearField("graph")), "no ONNX graph"),
        (_changed(lambda m: m.graph.ClearField("output")), "no ONNX graph"),
        (_changed(lambda m: m.ClearField("opset_import")), "isn't valid ONNX"),
        (_changed(_move_a_weight_outside), "'w0' is stored outside the file"),
        (_changed(_hide_external_data_in_a_node), "'hidden' is stored outside the file"),
        (_changed(_add_sparse_weights), "sparse weights"),
        (_changed(_hide_sparse_weights_in_a_node), "sparse weights"),
        (_changed(_double(40)), "functions stand for more than 50000 nodes"),
        (_changed(_call_in_a_circle), "calls itself"),
        (_changed(_add_two_of_one_name), "the same name"),
        (_changed(_hide_external_data_in_a_function), "'hidden' is stored outside the file"),
        (
            _changed(lambda m: setattr(m.graph.node[0], "op_type", "Foo")),
            r"isn't valid ONNX: No Op .* \(operator Foo of node 'conv0'\)\. Export the model again",
        ),
        (
            _changed(lambda m: m.graph.node[0].input.append("nowhere")),
            "name: conv0 OpType: Conv is not output",
        ),
        (_changed(lambda m: m.graph.node.reverse()), "isn't valid ONNX: .* name: .* is not output of any"),
        (_changed(lambda m: setattr(m, "ir_version", 9999)), "isn't valid ONNX"),
        (_changed(_set_number("strides", 0)), r"'conv0' has strides \[0, 0\]: each must be from 1 to"),
        (_changed(_set_number("group", -(2**63))), "has group"),
        (_changed(_set_number("dilations", 2**40)), "has dilations"),
        (_changed(_make_the_input_a_sequence), "isn't a tensor|not a tensor"),
        (_changed(_make_the_input_hold(TensorProto.STRING)), "holds text"),
        (_changed(_make_the_input_hold(TensorProto.COMPLEX64)), "holds complex numbers"),
    ],
)
def test_invalid_files_are_rejected_with_one_sentence(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_file(data, {})
    assert "\n" not in str(caught.value)


def test_a_huge_file_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.importing.onnx_file.MAX_FILE_BYTES", 100)
    with pytest.raises(ModelError, match="the limit is 100"):
        read_file(residual(), {})


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.importing.onnx_file.MAX_NODES", 3)
    with pytest.raises(ModelError, match="more than 3 nodes"):
        read_file(residual(), {})


def test_functions_are_inlined() -> None:
    file = read_file(_changed(_double(3)), {})
    assert not file.proto.functions
    before = onnx.load_from_string(residual()).graph.node
    assert len(file.proto.graph.node) == len(before) + 8


def test_an_input_of_unknown_rank_takes_any_shape_given() -> None:
    builder = Builder()
    data = builder.model({"input": [2, 3]}, {builder.op("Relu", "input"): None})
    unknown = _changed(lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"), data)
    assert read_file(unknown, {"input": (5, 6)}).inputs[0].shape == (5, 6)
    with pytest.raises(ModelError, match=r"dynamic dimensions \(unknown\)"):
        read_file(unknown, {})


def test_the_coarsest_type_of_a_model_is_found() -> None:
    assert read_file(residual(), {}).computed_in == "float32"
    b = Builder()
    ends = b.constant(np.array(0.1, np.float32)), b.constant(np.array(0, np.uint8))
    read = b.op("DequantizeLinear", b.op("QuantizeLinear", "input", *ends), *ends)
    assert read_file(b.model({"input": [2]}, {read: [2]}), {}).computed_in == "quantized"
    b = Builder()
    wide = b.op("Cast", b.op("Cast", "input", to=TensorProto.BFLOAT16), to=TensorProto.FLOAT)
    assert read_file(b.model({"input": [2]}, {wide: [2]}), {}).computed_in == "bfloat16"
