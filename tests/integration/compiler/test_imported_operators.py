"""Imported operators agree with ONNX Runtime where ONNX's own tests have no case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from compiler.importing.model import import_file
from compiler.importing.onnx_file import read_file
from compiler.importing.spec import ModelError
from compiler.measuring.outputs import compare_outputs
from compiler.verifying.imported import Imported, verify
from compiler.verifying.inputs import input_sets
from compiler.verifying.layers import Layers
from compiler.verifying.reference import Reference
from sandbox.limits import data_bytes
from tests.devices import UNOPTIMIZED as TARGET
from tests.marks import slow_lane_except
from tests.onnx_models import in_bits

MICROSOFT = "com.microsoft"


def check(model: onnx.ModelProto) -> None:
    """Compare all outputs, for inputs of the verification's kinds."""
    file = read_file(model.SerializeToString(), {})
    reference = Reference(file.proto, file.output_names)
    imported = Imported(import_file(file), TARGET)
    for inputs in input_sets(file):
        wanted, found = reference.compute(inputs), imported.compute(inputs)
        values = [found[name] for name in wanted]
        assert compare_outputs(list(wanted.values()), values, file.computed_in) == ""


def single(
    kind: str,
    inputs: Sequence[Any],
    outputs: int = 1,
    domain: str = "",
    opset: int = 20,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return the model of one operator. Tuples are the shapes of float inputs, arrays are constants, None is
    an input that is left out."""
    names = ["" if value is None else f"x{number}" for number, value in enumerate(inputs)]
    node = helper.make_node(
        kind, names, [f"y{k}" for k in range(outputs)], name="node", domain=domain, **attributes
    )
    given = dict(zip(names, inputs, strict=True))
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value)
            for name, value in given.items()
            if isinstance(value, tuple)
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [
            numpy_helper.from_array(value, name)
            for name, value in given.items()
            if isinstance(value, np.ndarray)
        ],
    )
    for output in graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(-0.5, 0.5, shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


LENGTHS = ints(4, 2)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", slow_lane_except(GATES, "LSTM", seconds=0.7))
def test_recurrent_layers_stop_at_the_end_of_each_sequence(kind: str, direction: str) -> None:
    gates = GATES[kind]
    count = 2 if direction == "bidirectional" else 1
    weights = random(count, gates * 3, 5), random(count, gates * 3, 3), random(count, 2 * gates * 3)
    outputs = 3 if kind == "LSTM" else 2
    check(single(kind, [(4, 2, 5), *weights, LENGTHS], outputs, hidden_size=3, direction=direction))


def bytes_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(0, 256, shape, dtype=np.uint8)


def multiplied_by_bits(bits: int, depth: int, zero: np.ndarray | None, bias: bool) -> onnx.ModelProto:
    """Five rows of weights of a few bits, in blocks of 16."""
    blocks = -(-depth // 16)
    packed, scale = bytes_of(5, blocks, 2 * bits), random(5, blocks) / 8
    inputs = [(2, 3, depth), packed, scale, zero, None, random(5) if bias else None]
    return single("MatMulNBits", inputs, domain=MICROSOFT, bits=bits, K=depth, N=5, block_size=16)


# Bits, products, zero points, and whether there is a bias.
BITS: Mapping[str, tuple[int, int, np.ndarray | None, bool]] = {
    "of 4 bits": (4, 32, None, False),
    "of 4 bits, the last block in parts": (4, 40, bytes_of(5, 2), True),
    "of 4 bits around floats": (4, 32, random(5, 2) * 16, False),
    "of 8 bits": (8, 48, bytes_of(5, 3), False),
}
SINGLE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "FusedMatMul": lambda: single(
        "FusedMatMul", [(2, 4, 3), random(2, 5, 4)], domain=MICROSOFT, transA=1, transB=1, alpha=0.5
    ),
    "BiasGelu": lambda: single("BiasGelu", [(2, 4), random(4)], domain=MICROSOFT),
    "FastGelu": lambda: single("FastGelu", [(2, 4), random(4)], domain=MICROSOFT),
    "QuickGelu": lambda: single("QuickGelu", [(2, 4)], domain=MICROSOFT, alpha=1.5),
    "FusedConv": lambda: single(
        "FusedConv", [(1, 2, 5, 5), random(3, 2, 3, 3), random(3)], domain=MICROSOFT, activation="Relu"
    ),
    "SkipLayerNormalization": lambda: single(
        "SkipLayerNormalization", [(1, 3, 8), (1, 3, 8), random(8), random(8), random(8)], domain=MICROSOFT
    ),
    "SkipSimplifiedLayerNormalization": lambda: single(
        "SkipSimplifiedLayerNormalization", [(1, 3, 8), (1, 3, 8), random(8)], domain=MICROSOFT
    ),
    "MultiHeadAttention": lambda: single(
        "MultiHeadAttention",
        [(2, 3, 8), (2, 5, 8), (2, 5, 8), random(24), ints(5, 3), random(1, 2, 3, 5)],
        domain=MICROSOFT,
        num_heads=2,
    ),
    "Attention": lambda: single(
        "Attention",
        [(2, 3, 8), random(8, 24), random(24), ints(3, 2)],
        domain=MICROSOFT,
        num_heads=2,
        unidirectional=1,
    ),
    "MultiHeadAttention without later keys": lambda: single(
        "MultiHeadAttention",
        [(2, 3, 8), (2, 5, 8), (2, 5, 8)],
        domain=MICROSOFT,
        num_heads=2,
        unidirectional=1,
    ),
    "Attention that hides later keys more than padding": lambda: single(
        "Attention",
        [(2, 3, 8), random(8, 24), random(24), np.array([[0, 1, 1], [0, 0, 0]], np.int32)],
        domain=MICROSOFT,
        num_heads=2,
        unidirectional=1,
        mask_filter_value=-5.0,
    ),
    "GroupQueryAttention of several lengths": lambda: single(
        "GroupQueryAttention",
        [
            *((2, 1, 32), (2, 1, 16), (2, 1, 16), (2, 1, 4, 16), (2, 1, 4, 16)),
            *(ints(3, 1), np.array(4, np.int32)),
        ],
        3,
        domain=MICROSOFT,
        num_heads=2,
        kv_num_heads=1,
    ),
    "GroupQueryAttention": lambda: single(
        "GroupQueryAttention",
        [
            *((1, 1, 32), (1, 1, 16), (1, 1, 16), (1, 1, 4, 16), (1, 1, 4, 16)),
            *(ints(4), np.array(5, np.int32), random(8, 8), random(8, 8)),
        ],
        3,
        domain=MICROSOFT,
        num_heads=2,
        kv_num_heads=1,
        do_rotary=1,
    ),
    "DynamicQuantizeMatMul": lambda: single(
        "DynamicQuantizeMatMul",
        [
            *((3, 4), np.arange(-4, 4, dtype=np.int8).reshape(4, 2)),
            *(np.array([0.1], np.float32), np.array([0], np.int8), random(2)),
        ],
        domain=MICROSOFT,
    ),
    "FusedGemm": lambda: single(
        "FusedGemm", [(2, 4), random(3, 4), random(3)], domain=MICROSOFT, transB=1, activation="Relu"
    ),
    "Gelu": lambda: single("Gelu", [(2, 4)], domain=MICROSOFT),
    "RotaryEmbedding": lambda: single(
        "RotaryEmbedding",
        [(1, 3, 16), np.array([2], np.int64), random(8, 4), random(8, 4)],
        domain=MICROSOFT,
        num_heads=2,
    ),
    "MatMulIntegerToFloat": lambda: single(
        "MatMulIntegerToFloat",
        [
            *(bytes_of(3, 4), np.arange(-4, 4, dtype=np.int8).reshape(4, 2)),
            *(np.array(0.1, np.float32), np.array(0.2, np.float32), np.array(7, np.uint8)),
        ],
        domain=MICROSOFT,
    ),
    **{f"MatMulNBits {name}": partial(multiplied_by_bits, *case) for name, case in BITS.items()},
    "Det": lambda: single("Det", [(2, 4, 4)]),
    "Expand": lambda: single("Expand", [(2, 3, 1), np.array([3, 4], np.int64)]),
    "PRelu": lambda: single("PRelu", [(2, 3, 4), random(3, 1)]),
    "LayerNormalization": lambda: single("LayerNormalization", [(2, 3, 4), random(4)], 3, axis=-1),
    "Resize": lambda: single(
        "Resize",
        [(1, 2, 7, 5), None, np.array([1, 1, 0.6, 0.6], np.float32)],
        mode="cubic",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    "RoiAlign": lambda: single(
        "RoiAlign",
        [(1, 2, 8, 8), np.array([[0, 0, 5, 6], [1, 2, 4, 4]], np.float32), np.array([0, 0], np.int64)],
        mode="max",
        output_height=2,
        output_width=2,
        sampling_ratio=2,
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_an_operator_agrees_with_onnx_runtime(name: str) -> None:
    check(SINGLE[name]())


@pytest.mark.parametrize(
    "case",
    [
        (4, 64, 33, 16, 3),
        (4, 64, 40, 32, 1, "packed"),
        (4, 100, 16, 64, 3, "packed"),
        (4, 256, 7, 128, 2),
        (4, 64, 16, 32, 3, "floats"),
        (8, 512, 9, 256, 2, "packed"),
        (8, 48, 16, 16, 1),
        (2, 64, 16, 32, 3),
        (4, 64, 33, 16, 3, "packed", 1),
    ],
)
def test_activations_are_rounded_to_bytes_as_onnx_runtime_does(case: tuple[Any, ...]) -> None:
    """At accuracy level 4. A product of floats differs from it by about 0.5%."""
    model = in_bits(*case)
    file = read_file(model.SerializeToString(), {})
    imported = import_file(file)
    for inputs in input_sets(file):
        (wanted,) = Reference(file.proto, file.output_names).compute(inputs).values()
        (found,) = Imported(imported, TARGET).compute(inputs).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


def test_a_model_of_accuracy_level_4_is_verified() -> None:
    """It was refused when activations stayed floats. ONNX Runtime loses NaN, and the import spreads it."""
    file = read_file(in_bits(4, 64, 33, 16, 3, "packed").SerializeToString(), {})
    assert all(agreement.note == "" for agreement in verify(file, import_file(file), TARGET, TARGET))


def test_a_weight_with_too_few_bytes_is_refused() -> None:
    model = in_bits(4, 64, 3, 32, 2)
    codes = numpy_helper.to_array(model.graph.initializer[0])
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(codes[..., 1:].copy(), "codes"))
    with pytest.raises(ModelError, match="the weight has 90 bytes, not 96"):
        import_file(read_file(model.SerializeToString(), {}))


def test_products_that_round_to_bytes_are_compared_one_by_one() -> None:
    """Rounding errors that become steps grow through a decoder, so whole models may differ by more."""
    file = read_file(in_bits(4, 64, 33, 16, 3, "packed").SerializeToString(), {})
    assert file.computed_in == "quantized"
    layers = Layers.of(file)
    assert layers is not None
    inputs = next(iter(input_sets(file)))
    wanted = layers.reference().compute(inputs)
    (name,) = layers.results
    assert not list(layers.differences({**inputs, **wanted}, wanted))
    off = {name: wanted[name] * np.float32(1.002)}
    [(culprit, wrong, _)] = layers.differences({**inputs, **wanted}, off)
    assert (culprit.split()[1], wrong) == ("MatMulNBits", name)
    floats = read_file(in_bits(4, 64, 33, 16, 3, "packed", 1).SerializeToString(), {})
    assert (floats.computed_in, Layers.of(floats)) == ("float32", None)


def test_nan_and_infinite_scales_give_nan_and_infinite_results() -> None:
    model = in_bits(4, 64, 3, 32, 2)
    scales = numpy_helper.to_array(model.graph.initializer[1]).copy()
    scales[0, 0], scales[1, 1] = np.nan, np.inf
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(scales, "scales"))
    file = read_file(model.SerializeToString(), {})
    inputs = next(iter(input_sets(file)))
    (wanted,) = Reference(file.proto, file.output_names).compute(inputs).values()
    (found,) = Imported(import_file(file), TARGET).compute(inputs).values()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    np.testing.assert_allclose(found[:, 2], wanted[:, 2], rtol=1e-4)


def test_before_opset_7_a_slope_applies_to_a_channel() -> None:
    """ONNX Runtime no longer has this version."""
    slopes = random(3)
    file = read_file(single("PRelu", [(2, 3, 4), slopes], opset=6).SerializeToString(), {})
    data = random(2, 3, 4)
    (found,) = Imported(import_file(file), TARGET).compute({"x0": data}).values()
    np.testing.assert_allclose(found, np.where(data < 0, data * slopes[:, None], data), rtol=1e-6)


QUANTIZED = """<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
model (float[1,2,6,6] x) => (float[1,3] y)
<float s = {0.031}, float t = {0.047}, float ws = {0.0137}, uint8 z = {128}, int8 w0 = {0},
 int64[2] flat = {1, 48}>
{
  q = QuantizeLinear (x, s, z)
  c = QLinearConv (q, s, z, w, ws, w0, t, z)
  a = com.microsoft.QLinearAdd (c, t, z, c, t, z, s, z)
  row = Reshape (a, flat)
  m = QLinearMatMul (row, s, z, v, ws, w0, t, z)
  y = DequantizeLinear (m, t, z)
}"""


def test_a_chain_of_quantized_operators_agrees_with_onnx_runtime() -> None:
    model = parser.parse_model(QUANTIZED)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (3, 2, 3, 3)), ("v", (48, 3))):
        weight = rng.integers(-20, 20, shape).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    check(model)


# Of quantized values q and r, with the scale s and the zero point z.
QLINEAR = {
    "QLinearMul": "p = com.microsoft.QLinearMul (q, s, z, r, s, z, t, z)",
    "QLinearSigmoid": "p = com.microsoft.QLinearSigmoid (q, s, z, t, z)",
    "QLinearLeakyRelu": "p = com.microsoft.QLinearLeakyRelu <alpha: float = 0.2> (q, s, z, t, z)",
    "QLinearSoftmax": "p = com.microsoft.QLinearSoftmax <opset: int = 13, axis: int = -1> (q, s, z, t, n)",
    "QLinearConcat": "p = com.microsoft.QLinearConcat <axis: int = 1> (t, z, q, s, z, r, s, z)",
    "QLinearAveragePool": """p = com.microsoft.QLinearAveragePool <kernel_shape: ints = [2, 2]>
        (q, s, z, t, z)""",
    "QLinearGlobalAveragePool": "p = com.microsoft.QLinearGlobalAveragePool (q, s, z, t, z)",
    "QGemm": """rows = Reshape (q, flat)
        p = com.microsoft.QGemm (rows, s, z, w, s, z, , t, z)""",
}


@pytest.mark.parametrize("name", QLINEAR)
def test_microsofts_quantized_operators_agree_with_onnx_runtime(name: str) -> None:
    zero = "n" if name == "QLinearSoftmax" else "z"
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]>
        model (float[1,2,4,4] x) => (float y)
        <float s = {{0.02}}, float t = {{0.0047}}, uint8 z = {{120}}, uint8 n = {{0}},
         int64[2] flat = {{4, 8}}>
        {{
          q = QuantizeLinear (x, s, z)
          u = Neg (x)
          r = QuantizeLinear (u, s, z)
          {QLINEAR[name]}
          y = DequantizeLinear (p, t, {zero})
        }}""")
    model.graph.initializer.append(numpy_helper.from_array(bytes_of(8, 3), "w"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    check(model)


CONTROL = {
    "a branch that the data chooses": """
        sum = ReduceSum <keepdims: int = 0> (x)
        is_positive = Greater (sum, zero)
        y = If (is_positive) <
            then_branch = then_graph () => (float[2] a) { a = Add (x, one) },
            else_branch = else_graph () => (float[2] b) { b = Sub (x, one) }
        >""",
    "a loop of three iterations": """
        y = Loop (three, , x) <
            body = body_graph (int64 i, bool c, float[2] before) => (bool d, float[2] after) {
                d = Identity (c)
                after = Mul (before, two)
            }
        >""",
    "a loop that the data ends": """
        y = Loop (three, yes, x) <
            body = body_graph (int64 i, bool c, float[2] before) => (bool d, float[2] after) {
                after = Mul (before, two)
                sum = ReduceMax <keepdims: int = 0> (after)
                d = Less (sum, one)
            }
        >""",
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_agrees_with_onnx_runtime(name: str) -> None:
    constants = "int64 three = {3}, bool yes = {1}, float zero = {0}, float one = {1}, float two = {2}"
    head = f'<ir_version: 9, opset_import: ["" : 20]> model (float[2] x) => (float[2] y) <{constants}>'
    check(parser.parse_model(f"{head} {{{CONTROL[name]}}}"))


def test_an_output_without_elements_is_named() -> None:
    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> model (float[4] x) => (float[n] empty) '
        "<int64[1] zero = {0}> { empty = Slice (x, zero, zero) }"
    )
    with pytest.raises(ModelError, match=r"output 'empty' is empty, of shape \(0,\): leave it out"):
        import_file(read_file(model.SerializeToString(), {}))


REFUSED: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "max_output_boxes_per_class must be a constant": lambda: parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> model (float[1, 4, 4] x, float[1, 1, 4] s, int64[1] n) => '
        "(int64[m, 3] y) { [node] y = NonMaxSuppression (x, s, n) }"
    ),
    "the parts along axis 0 have 65 elements each: at most 64": lambda: single("Unique", [(2, 65)], axis=0),
    "where it begins and ends must be a constant": lambda: parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> model (float[4] x, int64[1] n) => (float[m] y) '
        "<int64[1] zero = {0}> { [node] y = Slice (x, zero, n) }"
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_names_the_node(message: str) -> None:
    with pytest.raises(ModelError, match=f"operator .* of node 'node' can't be imported: {message}"):
        import_file(read_file(REFUSED[message]().SerializeToString(), {}))


def test_folded_nodes_keep_no_memory_of_the_runtime_that_computed_them() -> None:
    """A session's arena takes a megabyte at least: 300 nodes would keep 300 MB."""
    constant = numpy_helper.from_array(np.ones(16, np.float32), "v0")
    nodes = [helper.make_node("Softsign", [f"v{at}"], [f"v{at + 1}"]) for at in range(300)]
    nodes.append(helper.make_node("Add", ["x", "v300"], ["y"]))
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (16,)) for name in ("x", "y")]
    model = helper.make_model(
        helper.make_graph(nodes, "constants", ends[:1], ends[1:], [constant]),
        opset_imports=[helper.make_opsetid("", 20)],
    )
    file = read_file(model.SerializeToString(), {})
    import_file(file)
    before = data_bytes()
    kept = import_file(file)
    assert kept is not None
    assert data_bytes() - before < 100 << 20
