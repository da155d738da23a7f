"""Old and special forms of ONNX's operators compute what ONNX Runtime does."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser

from compiler.importing.model import import_file, read_onnx
from compiler.importing.onnx_file import read_archive, read_file
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported
from compiler.verifying.reference import Reference
from tests.devices import UNOPTIMIZED as TARGET
from tests.onnx_models import leaky
from tunefarm.client.model_files import ModelFiles

RNG = np.random.default_rng(3)
Array = NDArray[Any]


def model_of(
    kind: str,
    opset: int,
    inputs: Sequence[Array | None],
    outputs: int = 1,
    varying: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one operator, whose first `varying` inputs the user gives; others are constants."""
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    arrays = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    results = [f"y{k}" for k in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(kind, names, results, **attributes)],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in list(arrays.items())[:varying]
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(value, name) for name, value in list(arrays.items())[varying:]],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    for output in inferred.graph.output:
        if not output.type.tensor_type.elem_type:
            output.type.tensor_type.elem_type = TensorProto.FLOAT
    return inferred


def check(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Compare an imported model with ONNX Runtime, NaN and infinities included; return what it computes."""
    file = read_file(model.SerializeToString(), {})
    reference = Reference(file.original, file.output_names)
    wanted = reference.compute(inputs)
    assert reference.doubt == ""
    found = Imported(import_file(file), TARGET).compute(inputs)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    return found


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


CASES: dict[str, tuple[str, int, list[Array | None], dict[str, Any]]] = {
    "batch norm of every element": (
        *("BatchNormalization", 7),
        [normal(2, 3, 4), *(np.abs(normal(3, 4)) for _ in range(4))],
        {"spatial": 0},
    ),
    "pad": ("Pad", 10, [normal(2, 3)], {"pads": [1, 0, 2, 1], "value": 7.0}),
    "squeeze": ("Squeeze", 11, [normal(2, 1, 3, 1)], {"axes": [-1]}),
    "unsqueeze": ("Unsqueeze", 11, [normal(2, 3)], {"axes": [-1, 0]}),
    "softmax of all that follows": ("Softmax", 11, [normal(2, 3, 4)], {}),
    "log softmax of a later axis": ("LogSoftmax", 9, [normal(2, 3, 4)], {"axis": -1}),
    "hardmax of all that follows": ("Hardmax", 11, [normal(2, 3, 4)], {"axis": 1}),
    "resize 10, linear": (
        *("Resize", 10),
        [normal(1, 2, 3, 3), np.array([1, 1, 2, 3], np.float32)],
        {"mode": "linear"},
    ),
    "resize 10, smaller": ("Resize", 10, [normal(1, 2, 4, 6), np.array([1, 1, 0.5, 0.5], np.float32)], {}),
    "resize 10, one axis smaller": (
        *("Resize", 10),
        [normal(1, 1, 5, 6), np.array([1, 1, 0.6, 1.5], np.float32)],
        {},
    ),
    **{
        f"resize of {np.dtype(dtype).name}": (
            *("Resize", 13),
            [RNG.integers(0, 120, (1, 1, 4, 4)).astype(dtype), None, np.array([1, 1, 2, 1.7], np.float32)],
            {"mode": "linear"},
        )
        for dtype in (np.uint8, np.int8, np.int32)
    },
    "a crop between two elements": (
        *("Resize", 13),
        [
            normal(1, 1, 5, 6),
            np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.1], np.float32),
            None,
            np.array([1, 1, 7, 4]),
        ],
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
    ),
    "dropout 10": ("Dropout", 10, [normal(2, 3)], {}),
    "a sum of exponentials of infinities": (
        *("ReduceLogSumExp", 18),
        [np.array([[np.inf, 1], [-np.inf, -np.inf], [1000, 1000]], np.float32), np.array([1])],
        {"keepdims": 0},
    ),
    **{
        f"{kind} with {automatic}": (
            *(kind, 18),
            [normal(1, 2, 7, 8)],
            {"kernel_shape": [4, 3], "strides": [3, 2], "auto_pad": automatic},
        )
        for kind in ("AveragePool", "LpPool", "MaxPool")
        for automatic in ("SAME_UPPER", "SAME_LOWER", "VALID")
    },
    "upsample 9": (
        "Upsample",
        9,
        [normal(1, 2, 3, 3), np.array([1, 1, 2, 3], np.float32)],
        {"mode": "linear"},
    ),
    "upsample 7": ("Upsample", 7, [normal(1, 2, 3, 3)], {"scales": [1.0, 1.0, 2.0, 2.0]}),
    "scatter": (
        *("Scatter", 9),
        [normal(3, 3), np.array([[0, 2, 1]]), normal(1, 3)],
        {"axis": 0},
    ),
    "top k": ("TopK", 10, [normal(2, 5), np.array([3])], {}),
    "group norm of each group": (
        *("GroupNormalization", 18),
        [normal(2, 4, 3, 3), normal(2), normal(2)],
        {"num_groups": 2},
    ),
    "lrn": ("LRN", 13, [normal(2, 5, 3, 3)], {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.5}),
    **{
        f"{kind} of {dtype}": (
            *(kind, 17),
            [np.array([[7, -10, 3], [100, 3, -1], [-7, -8, 12]], dtype)],
            {"axes": [1], "keepdims": 0},
        )
        for kind in ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
        for dtype in (np.int32, np.int64)
    },
    "a product that is too large": (
        "ReduceProd",
        17,
        [np.array([[1 << 30, 5], [-(1 << 30), 9]], np.int32)],
        {},
    ),
    "a sum that is too large": ("ReduceSum", 18, [np.array([(1 << 63) - 1, 5])], {}),
    "a mean of large numbers": ("ReduceMean", 18, [np.array([[1 << 30] * 3, [-1, -2, -2]], np.int32)], {}),
    **{
        f"{kind} of each element": (
            *(kind, 18),
            [np.abs(normal(2, 3)) if "Log" in kind else normal(2, 3), np.array([], np.int64)],
            {"noop_with_empty_axes": 1},
        )
        for kind in (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
            *("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
        )
    },
    "a slice that begins before the first element, backwards": (
        *("Slice", 13),
        [normal(4, 5), *(np.array(each) for each in ([-9, 7], [-99, -99], [0, 1], [-2, -3]))],
        {},
    ),
    "a triangle beyond the matrix": ("Trilu", 14, [normal(2, 3, 4), np.array(-(1 << 63))], {"upper": 1}),
    "a wrapped part": ("Pad", 19, [normal(5), np.array([2, -1])], {"mode": "wrap"}),
    **{
        f"fewer places than elements along axis {axis}, {reduction}": (
            *("ScatterElements", 18),
            [
                normal(4, 5, 4),
                np.indices((2, 2, 2))[axis] - (axis == 1),
                normal(2, 2, 2),
            ],
            {"axis": axis, "reduction": reduction},
        )
        for axis in range(3)
        for reduction in ("none", "add")
    },
    "empty axes": ("ReduceSum", 18, [normal(2, 3), np.array([], np.int64)], {"keepdims": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_form_agrees_with_onnx_runtime(case: str) -> None:
    kind, opset, inputs, attributes = CASES[case]
    model = model_of(kind, opset, inputs, 2 if kind in ("Dropout", "TopK") else 1, **attributes)
    first = inputs[0]
    assert first is not None
    check(model, {"x0": first})


@pytest.mark.parametrize("before", ["Neg(x)", "LeakyRelu(x)", "Expand(x, shape)"])
def test_nan_and_infinity_minus_themselves_are_nan(before: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[4] x) => (float[4] y) <int64[1] shape = {{4}}> {{ a = {before}  y = Sub(a, a) }}"""
    )
    check(model, {"x": np.array([1, np.nan, np.inf, -np.inf], np.float32)})


@pytest.mark.parametrize("tuned_for", ["", TARGET])
def test_a_cast_to_bfloat16_and_back_rounds(tuned_for: str) -> None:
    """Both casts are in one kernel with exact operators between them, so TVM would omit them."""
    bfloat16 = TensorProto.BFLOAT16
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g (float[8] x) => (float[8] y, float[8] z) {{
            a = Cast<to = {bfloat16}>(x)  y = Cast<to = 1>(a)  b = Neg(a)  z = Cast<to = 1>(b)
        }}"""
    )
    x = np.array([1 / 3, 1e5, 257, 259, -2.71828, np.nan, np.inf, 3.4e38], np.float32)
    found = Imported(import_file(read_file(model.SerializeToString(), {})), TARGET, tuned_for).compute(
        {"x": x}
    )
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found["y"], rounded)
    np.testing.assert_array_equal(found["z"], -rounded)


@pytest.mark.parametrize("case", ["softmax of all that follows", "log softmax of a later axis", "upsample 9"])
def test_constants_in_old_forms_are_folded_as_onnx_runtime_does(case: str) -> None:
    kind, opset, inputs, attributes = CASES[case]
    model = model_of(kind, opset, inputs, varying=0, **attributes)
    model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
    model.graph.node.append(helper.make_node("Neg", ["x"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [2]))
    check(model, {"x": normal(2)})


def numbers(count: int) -> str:
    return ", ".join(map(str, range(count)))


FOLDED = """
<ir_version: 8, opset_import: ["" : 12]>
g (float[2] x) => (TYPE z, float[2] y) <WEIGHTS> { z = CALL  y = Neg(x) }
"""


@pytest.mark.parametrize(
    ("kind", "weights", "call"),
    [
        ("int64[3]", "int64[3] a = {2, 1, -1}, int64 b = {-1}", "Pow(a, b)"),
        ("float[2,3,1]", f"float[2,3,4] a = {{{numbers(24)}}}", "GlobalMaxPool(a)"),
        (
            "float[1,2,5,5]",
            f"float[1,2,3,3] a = {{{numbers(18)}}}, float[2,1,3,3] b = {{{numbers(18)}}}",
            "ConvTranspose<group: int = 2>(a, b)",
        ),
    ],
)
def test_a_constant_folds_as_onnx_runtime_computes_it(kind: str, weights: str, call: str) -> None:
    text = FOLDED.replace("TYPE", kind).replace("WEIGHTS", weights).replace("CALL", call)
    check(parser.parse_model(text), {"x": normal(2)})


def test_before_opset_7_an_attribute_aligns_the_second_operand() -> None:
    """ONNX Runtime has no kernels of these versions."""
    x, b = normal(2, 3, 4), normal(3)
    model = model_of("Add", 6, [x, b], axis=1, broadcast=1)
    found = Imported(read_onnx(model.SerializeToString(), {}), TARGET).compute({"x0": x})
    np.testing.assert_allclose(found["y0"], x + b[:, None], rtol=1e-6)


@pytest.mark.parametrize("automatic", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("shape", [[10, 8], [11, 9], [12, 7]])
def test_odd_padding_goes_to_the_side_that_onnx_defines(automatic: str, shape: list[int]) -> None:
    x = normal(1, 2, 4, 4)
    model = model_of(
        *("ConvTranspose", 11, [x, normal(2, 3, 3, 3)]),
        output_shape=shape,
        strides=[3, 2],
        auto_pad=automatic,
    )
    check(model, {"x0": x})


@pytest.mark.parametrize("automatic", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "strides"), [([1, 1], [3, 2]), ([2, 3], [3, 2]), ([1, 4], [2, 3])])
def test_windows_that_are_smaller_than_their_steps_take_no_padding(
    automatic: str, kernel: list[int], strides: list[int]
) -> None:
    """ONNX Runtime's outputs are then smaller than the input times the stride."""
    x = normal(1, 2, 2, 4)
    check(
        model_of("ConvTranspose", 11, [x, normal(2, 3, *kernel)], strides=strides, auto_pad=automatic),
        {"x0": x},
    )


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}, {"ceil_mode": 1}])
def test_indices_of_maxima_with_automatic_padding_agree_with_onnx_runtime(attributes: dict[str, Any]) -> None:
    x = normal(1, 2, 7, 8)
    check(model_of("MaxPool", 12, [x], 2, kernel_shape=[4, 3], strides=[3, 2], **attributes), {"x0": x})


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("how", ["half_pixel", "output_half_pixel"])
def test_adaptive_roi_align_takes_a_sample_for_each_pixel(mode: str, how: str) -> None:
    """An empty box has none, and so zeros."""
    x = normal(2, 2, 6, 7)
    boxes = np.array([[0, 0, 0, 0], [1, 1, 5, 4], [2, 3, 2.5, 3.5], [-3, -2, 9, 9], [4, 4, 1, 1]], np.float32)
    model = model_of(
        *("RoiAlign", 16, [x, boxes, np.array([0, 1, 0, 1, 0])]),
        varying=2,
        mode=mode,
        coordinate_transformation_mode=how,
        spatial_scale=0.5,
        output_height=2,
        output_width=3,
    )
    check(model, {"x0": x, "x1": boxes})


@pytest.mark.parametrize("version", [16, 17])
@pytest.mark.parametrize("given", [{}, {"alpha": 0.1}])
def test_a_function_keeps_its_default_attributes(version: int, given: dict[str, float]) -> None:
    """Functions whose operators have another version aren't inlined."""
    check(leaky("a", "b", version=version, **given), {"a": normal(2, 3), "b": normal(2, 3)})


def test_a_weight_of_a_loop_hides_a_value_of_the_same_name() -> None:
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x) => (float[2] y) <int64 M = {3}, float k = {10}> {
            w = Mul(x, k)
            y = Loop(M, "", w) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] e)
                <float k = {2}> {
                e = Mul(a, k)
                d = Identity(c)
            }>
        }""")
    check(model, {"x": normal(2)})


def test_a_constant_may_be_in_another_file(tmp_path: Path) -> None:
    weight = normal(2, 3)
    (tmp_path / "weights.bin").write_bytes(bytes(8) + weight.tobytes())
    model = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[2,3] x) => (float[2,3] y) {
            w = Constant<value = float[2,3] {1, 2, 3, 4, 5, 6}>()
            y = Mul(x, w)
        }
        """)
    tensor = model.graph.node[0].attribute[0].t
    for field in ("raw_data", "float_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "8"), ("length", "24")):
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    uploaded = io.BytesIO(b"".join(ModelFiles.of(tmp_path / "model.onnx").chunks()))
    x = normal(2, 3)
    file = read_archive(uploaded.getbuffer(), uploaded, {})
    np.testing.assert_array_equal(Imported(import_file(file), TARGET).compute({"x": x})["y"], x * weight)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            model_of("Add", 18, [normal(2, 3), normal(4)]),
            "operator Add (version 14) of the unnamed node that computes 'y0' (number 0) can't be "
            "imported: ONNX doesn't allow its inputs: incompatible dimensions (its inputs are float32 "
            "(2, 3), float32 (4,)). Change or replace the node",
        ),
        (
            model_of("BatchNormalization", 15, [normal(2, 3, 4), *[normal(5)] * 4]),
            "ONNX doesn't allow its inputs: dimension mismatch in unification between 5 and 3",
        ),
        (model_of("Add", 6, [normal(2, 3), normal(3)]), "need broadcast=1"),
    ],
)
def test_a_refusal_names_the_node_and_dumps_no_object(model: onnx.ModelProto, said: str) -> None:
    with pytest.raises(ModelError) as raised:
        read_onnx(model.SerializeToString(), {})
    assert said in str(raised.value)
    assert "span=" not in str(raised.value)
    assert "T.int64" not in str(raised.value)


def test_constants_of_a_newer_opset_than_onnx_runtime_reads_are_folded() -> None:
    """An operator keeps its version in newer opsets. Bodies of ONNX's functions give an axis as a scalar."""
    graph = """g (float[6] x) => (float[1,2,3] y) <float[2] extents = {2, 3}, int64 axis = {0}> {
        positive = Relu(extents)
        shape = Cast<to = 7>(positive)
        rows = Reshape(x, shape)
        first = Unsqueeze(shape, axis)
        flat = Squeeze(first, axis)
        table = Reshape(rows, flat)
        y = Unsqueeze(table, axis)
    }"""
    newest = onnx.defs.onnx_opset_version()
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {newest}]> {graph}')
    data = np.arange(6, dtype=np.float32)
    (found,) = Imported(read_onnx(model.SerializeToString(), {}), TARGET).compute({"x": data}).values()
    np.testing.assert_array_equal(found, data.reshape(1, 2, 3))


def test_an_output_that_is_a_sequence_is_refused_by_name() -> None:
    output = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, [2])
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["parts"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [output],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(ModelError, match="output 'parts' is a sequence; only tensors are supported"):
        read_file(model.SerializeToString(), {})


def test_a_part_without_elements_is_left_out() -> None:
    x = normal(5)
    node = helper.make_node("Split", ["x0", "sizes"], ["", "y0", "y1"])
    proto = model_of("Neg", 18, [x])
    del proto.graph.node[:]
    proto.graph.node.append(node)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([0, 2, 3]), "sizes"))
    proto.graph.output.append(onnx.ValueInfoProto(name="y1"))
    proto.graph.output[1].CopyFrom(helper.make_tensor_value_info("y1", onnx.TensorProto.FLOAT, None))
    found = Imported(read_onnx(proto.SerializeToString(), {}), TARGET).compute({"x0": x})
    np.testing.assert_array_equal(found["y0"], x[:2])
    np.testing.assert_array_equal(found["y1"], x[2:])


def test_a_term_with_factor_zero_is_not_read() -> None:
    a, b = normal(2, 3), normal(3, 4)
    c = np.full((2, 4), np.nan, np.float32)
    proto = model_of("Gemm", 18, [a, b, c], varying=3, beta=0.0)
    found = Imported(read_onnx(proto.SerializeToString(), {}), TARGET).compute({"x0": a, "x1": b, "x2": c})
    np.testing.assert_allclose(found["y0"], a @ b, rtol=1e-5)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_the_states_of_a_sequence_without_steps_are_zero(kind: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    names = ["x", "w", "r", "", "lengths", "h", *(["c"] if kind == "LSTM" else [])]
    outputs = ["y", "yh", *(["yc"] if kind == "LSTM" else [])]
    inputs = {"x": normal(3, 2, 2), "w": normal(1, gates * 4, 2), "r": normal(1, gates * 4, 4)}
    inputs |= {name: normal(1, 2, 4) for name in names[5:]}
    given: dict[str, Any] = {**inputs, "lengths": np.array([0, 2], np.int32)}
    graph = helper.make_graph(
        [helper.make_node(kind, names, outputs, hidden_size=4)],
        "layer",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in given.items()
        ],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wanted = Reference(proto, outputs).compute(given)
    found = Imported(read_onnx(proto.SerializeToString(), {}), TARGET).compute(given)
    for name in outputs:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("left", "right"), [((5,), (5, 4)), ((5,), (2, 5, 4)), ((3, 5), (5,)), ((5,), (5,))])
def test_products_of_byte_vectors_agree_with_onnx_runtime(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 256, shape).astype(np.uint8) for shape in (left, right))
    check(model_of("MatMulInteger", 10, [a, b, np.array(7, np.uint8)]), {"x0": a})
