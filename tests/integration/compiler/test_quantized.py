"""Quantized operators become dot products of bytes, and compute what ONNX Runtime does."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from tvm import relax

from compiler.importing import operators
from compiler.importing.model import extract_tasks, fuse, import_file, kernel_calls, read_onnx
from compiler.importing.onnx_file import read_file
from compiler.importing.onnx_graph import Graph
from compiler.importing.spec import ModelError
from compiler.importing.values import Node, Value
from compiler.precision import quantized
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.verifying.imported import verify
from compiler.verifying.layers import compare
from compiler.workload import from_json
from core.device import Device
from examples.make_models import make
from examples.quantization import quantize
from search.dag import NARROW
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.compiled import build_module, load_main
from tests.devices import GPU
from tests.marks import slow_lane_except

Array = NDArray[Any]
DEVICE = detect_device()
SCALE = 0.05
# Types of quantized values and their zeros.
KINDS = [("uint8", 121), ("uint8", 0), ("int8", -7)]
needs_vnni = pytest.mark.skipif(
    "avx512_vnni" not in DEVICE.features, reason="this CPU has no such instruction"
)


needs_avx2 = pytest.mark.skipif("avx2" not in DEVICE.features, reason="this CPU has no AVX2")
HASWELL = replace(
    DEVICE,
    features=("avx", "avx2", "fma"),
    vector_bytes=32,
    mcpu="haswell",
    target='{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"haswell"}',
)
VNNI = '{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"cascadelake"}'


class Quantized:
    """A graph like a quantizer's: every operand and every result passes through bytes."""

    def __init__(self, dtype: str, zero: int, largest: int = 127) -> None:
        self.dtype, self.zero, self.largest = dtype, zero, largest
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def bytes_of(self, x: str, scale: float = SCALE) -> str:
        """Quantize `x` to bytes and dequantize it."""
        stored = self.node("QuantizeLinear", x, *self._parameters(np.array(scale), self.zero, self.dtype))
        return self.node("DequantizeLinear", *stored_with(stored, self.nodes[-1]))

    def weight(self, *shape: int, axis: int) -> str:
        """A weight of signed bytes, with a scale for every index of an axis."""
        scales = self.rng.uniform(0.01, 0.02, shape[axis])
        parameters = self._parameters(scales, 0, "int8")
        stored = self.constant(self.rng.integers(-self.largest, self.largest + 1, shape).astype(np.int8))
        return self.node("DequantizeLinear", stored, *parameters, axis=axis)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"v{len(self.nodes)}"], **attributes))
        return f"v{len(self.nodes) - 1}"

    def constant(self, value: Array) -> str:
        self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
        return f"w{len(self.weights) - 1}"

    def _parameters(self, scale: Array, zero: int, dtype: str) -> tuple[str, str]:
        zeros = np.full(scale.shape, zero, dtype)
        return self.constant(scale.astype(np.float32)), self.constant(zeros)

    def model(self, inputs: Mapping[str, Sequence[int]], output: str) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "quantized",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.weights,
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def stored_with(stored: str, node: onnx.NodeProto) -> tuple[str, ...]:
    return (stored, *node.input[1:])


def convolution(graph: Quantized, groups: int = 1, channels: int = 8) -> tuple[bytes, dict[str, Any]]:
    x = graph.bytes_of("x")
    weight = graph.weight(16 if groups == 1 else channels, channels // groups, 3, 3, axis=0)
    bias = graph.constant(graph.rng.standard_normal(16 if groups == 1 else channels).astype(np.float32))
    y = graph.node("Conv", x, weight, bias, pads=[1, 1, 1, 1], group=groups)
    shape = (1, channels, 6, 6)
    return graph.model({"x": shape}, graph.bytes_of(graph.node("Relu", y))), {"x": shape}


def dense(graph: Quantized) -> tuple[bytes, dict[str, Any]]:
    """A fully connected layer of 24 outputs: eight lanes divide them, sixteen don't."""
    moved = graph.node("Reshape", graph.bytes_of("x"), graph.constant(np.array([5, 32])))
    y = graph.node("MatMul", graph.bytes_of(moved), graph.weight(32, 24, axis=1))
    return graph.model({"x": (5, 4, 8)}, graph.bytes_of(y)), {"x": (5, 4, 8)}


def gemm(graph: Quantized) -> tuple[bytes, dict[str, Any]]:
    """A fully connected layer with transposed weights."""
    y = graph.node("Gemm", graph.bytes_of("x"), graph.weight(24, 32, axis=0), transB=1)
    return graph.model({"x": (5, 32)}, graph.bytes_of(y)), {"x": (5, 32)}


def attention(graph: Quantized) -> tuple[bytes, dict[str, Any]]:
    """The product of two activations."""
    turned = graph.node("Transpose", graph.bytes_of("y"), perm=[0, 2, 1])
    product = graph.node("MatMul", graph.bytes_of("x"), turned)
    shapes = {"x": (2, 6, 32), "y": (2, 16, 32)}
    # With equal scales, many products would be in the middle of two steps.
    return graph.model(shapes, graph.bytes_of(product, 0.94 * SCALE)), shapes


CASES = {
    "convolution": convolution,
    "three channels": lambda graph: convolution(graph, channels=3),
    "dense": dense,
    "attention": attention,
}


@needs_vnni
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 121), ("int8", -7)])
@pytest.mark.parametrize("case", slow_lane_except(CASES, "dense"))
def test_quantized_operators_reach_the_instructions(case: str, dtype: str, zero: int) -> None:
    model, shapes = CASES[case](Quantized(dtype, zero))
    assert _check(model, shapes) == 1


@needs_avx2
@pytest.mark.parametrize("kind", slow_lane_except([("uint8", 121), ("int8", -7)], ("int8", -7)))
@pytest.mark.parametrize("case", slow_lane_except(CASES, "convolution"))
def test_without_dot_products_of_bytes_operators_multiply_pairs_of_int16(
    case: str, kind: tuple[str, int]
) -> None:
    model, shapes = CASES[case](Quantized(*kind))
    # Sums over activations and weights of 8 bits saturate in ONNX Runtime's kernels without VNNI.
    reference = None if case == "attention" else _without_kernels_of_bytes(model)
    assert _check(model, shapes, HASWELL, reference) == 1


@needs_avx2
@pytest.mark.parametrize("kind", slow_lane_except([("uint8", 121), ("int8", -7)], ("int8", -7)))
@pytest.mark.parametrize("case", slow_lane_except([*CASES, "gemm"], "convolution", "gemm"))
def test_weights_of_7_bits_are_multiplied_as_bytes_without_vnni(case: str, kind: tuple[str, int]) -> None:
    """The product of two activations has no narrow columns."""
    make = {**CASES, "gemm": gemm}[case]
    model, shapes = make(Quantized(*kind, largest=NARROW))
    assert _check(model, shapes, HASWELL) == 1
    found = _intrinsics(model, HASWELL)
    assert found == ({"dot_8x2_pmaddwd"} if case == "attention" else {"dot_8x4_pmaddubsw"})
    assert _intrinsics(make(Quantized(*kind, largest=NARROW + 1))[0], HASWELL) == {"dot_8x2_pmaddwd"}


@needs_avx2
@pytest.mark.parametrize("groups", [1, 8])
def test_convolutions_widen_bytes_where_they_pad_them(groups: int) -> None:
    """So no kernel only widens, and the previous kernel writes bytes."""
    model, shapes = convolution(Quantized("uint8", 0), groups=groups)
    reference = _without_kernels_of_bytes(model)
    assert _check(model, shapes, HASWELL, reference) == (groups == 1)
    tasks = extract_tasks(fuse(read_onnx(model, {}), HASWELL.target))
    [dag] = [read_dag(from_json(task.module_json)) for task in tasks if "conv2d" in task.name]
    assert dag.buffers[0].dtype == "uint8"


@needs_avx2
@pytest.mark.parametrize("kind", slow_lane_except(KINDS, KINDS[0]))
def test_a_quantizer_stores_what_several_readers_need(kind: tuple[str, int]) -> None:
    """A convolution multiplies int16, and an addition reads floats. The first and last kernels transpose."""
    graph = Quantized(*kind)

    def pointwise(x: str, stride: int = 1) -> str:
        return graph.bytes_of(graph.node("Conv", x, graph.weight(8, 8, 1, 1, axis=0), strides=[stride] * 2))

    first = pointwise(graph.bytes_of("x"))
    both = graph.bytes_of(graph.node("Add", first, pointwise(first)))
    model, shape = graph.model({"x": (1, 8, 6, 6)}, pointwise(both, stride=2)), (1, 8, 6, 6)
    assert _check(model, {"x": shape}, HASWELL, _without_kernels_of_bytes(model)) == 3
    tasks = extract_tasks(fuse(read_onnx(model, {}), HASWELL.target))
    dags = [read_dag(from_json(task.module_json)) for task in tasks]
    assert [any(node.reduction for node in dag.nodes) for dag in dags] == [False, True, True, True, False]
    assert [dag.buffers[0].dtype for dag in dags[1:3]] == ["int16", "int16"]
    # Nothing is padded, so nothing is copied.
    assert not any("pad_temp" in dag.node for dag in dags)


@needs_avx2
@pytest.mark.parametrize("join", slow_lane_except(["Add", "Mul"], "Add", seconds=1))
@pytest.mark.parametrize(
    ("steps", "floats"), [((1, 0.94), 0), ((1, None), 0), ((None, 1), 0), ((None, None), 1)]
)
def test_where_two_products_meet_bytes_are_stored(
    join: str, steps: tuple[float | None, float | None], floats: int
) -> None:
    """As in a residual block that changes its shape. Without a quantizer of the model's own, floats are."""
    graph = Quantized("uint8", 121, largest=NARROW)

    def product(x: str, step: float | None) -> str:
        y = graph.node("MatMul", x, graph.weight(32, 32, axis=1))
        return y if step is None else graph.bytes_of(y, step * SCALE)

    x = graph.bytes_of("x")
    beside = product(x, steps[0])
    joined = graph.node(join, beside, product(product(x, 1), steps[1]))
    model, shapes = graph.model({"x": (5, 32)}, graph.bytes_of(joined, 1.03 * SCALE)), {"x": (5, 32)}
    assert _check(model, shapes, HASWELL, _without_kernels_of_bytes(model)) >= 2
    kernels = [str(call.ty.dtype) for call in kernel_calls(fuse(read_onnx(model, {}), HASWELL.target))]
    # The last kernel computes the model's output.
    assert kernels[-1] == "float32"
    assert sorted(kernels[:-1]) == ["float32"] * floats + ["uint8"] * (3 - floats)


@needs_avx2
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", slow_lane_except(["uint8", "int16", "float32"], "int16", "float32"))
def test_nan_becomes_the_least_byte(stored: str, kind: tuple[str, int]) -> None:
    """Readers need bytes for 7-bit weights, int16 for 8-bit weights, and floats for an addition."""
    graph = Quantized(*kind, largest=NARROW if stored == "uint8" else 127)
    x = graph.bytes_of("x")
    read = graph.node("Add", x, "y") if stored == "float32" else None
    y = read or graph.node("MatMul", x, graph.weight(32, 24, axis=1))
    shapes = {"x": (5, 32), **({"y": (5, 32)} if read else {})}
    model = graph.model(shapes, y)
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["x"][:, ::7] = np.nan
    (expected,) = _without_kernels_of_bytes(model)(None, feeds)
    fused = fuse(read_onnx(model, {}), HASWELL.target)
    np.testing.assert_allclose(_run(fused, [*feeds.values()], HASWELL.target), expected, rtol=1e-4, atol=1e-4)


@needs_avx2
@pytest.mark.parametrize("largest", [NARROW, 127])
def test_the_least_float_of_a_mask_may_become_nan(largest: int) -> None:
    """As in BERT: the mask's bytes are restored as -inf, times 0 they are NaN, and its byte is the least."""
    graph = Quantized("uint8", 255, largest=largest)
    least = np.float32(np.finfo(np.float32).min)
    scale = np.nextafter(-least / np.float32(255), np.float32(np.inf))
    stored = graph.constant(np.zeros((1, 1), np.uint8))
    parameters = graph.constant(scale), graph.constant(np.array(255, np.uint8))
    mask = graph.node("Mul", graph.node("DequantizeLinear", stored, *parameters), "hidden")
    restored = graph.bytes_of(mask, float(scale))
    graph.zero = 121
    scores = graph.node("MatMul", graph.bytes_of("x"), graph.weight(32, 24, axis=1))
    weights = graph.node("Softmax", graph.node("Add", graph.bytes_of(scores), restored))
    graph.zero = 0
    model = graph.model({"x": (5, 32), "hidden": (5, 24)}, graph.bytes_of(weights, 1 / 255))
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((5, 32)).astype(np.float32),
        "hidden": (rng.random((5, 24)) < 0.5).astype(np.float32),
    }
    (expected,) = _without_kernels_of_bytes(model)(None, feeds)
    fused = fuse(read_onnx(model, {}), HASWELL.target)
    found = _run(fused, [*feeds.values()], HASWELL.target)
    assert np.isfinite(expected).all()
    assert np.abs(found - expected).max() < 1.01 / 255


@needs_avx2
def test_a_quantizer_leaves_no_multiplication_and_no_relu() -> None:
    model, _ = convolution(Quantized("uint8", 0))
    names = [task.name for task in extract_tasks(fuse(read_onnx(model, {}), HASWELL.target))]
    [name] = [name for name in names if "conv2d" in name]
    before = name.partition("round")[0]
    assert (before.count("multiply"), before.count("maximum"), before.count("relu")) == (1, 0, 0)
    # Zero is in the middle of the bytes, so relu clamps more than the quantizer does.
    model, _ = convolution(Quantized("uint8", 121))
    names = [task.name for task in extract_tasks(fuse(read_onnx(model, {}), HASWELL.target))]
    assert [name.partition("round")[0].count("maximum") for name in names if "conv2d" in name] == [1]


def _other_product(graph: Quantized) -> str:
    return graph.node("MatMul", graph.bytes_of("x"), graph.weight(32, 24, axis=1))


@needs_avx2
@pytest.mark.parametrize("zero", slow_lane_except([0, 121], 121, seconds=1))
@pytest.mark.parametrize(
    ("between", "names"),
    [
        (lambda graph, x: graph.node("Relu", x), ("", "_maximum")),
        (
            lambda graph, x: graph.node("Clip", x, *(graph.constant(np.float32(bound)) for bound in (0, 3))),
            ("_maximum_minimum", "_maximum_minimum"),
        ),
        (lambda graph, x: graph.node("Add", x, x), ("_add", "_add_add")),
        (lambda graph, x: graph.node("Add", x, _other_product(graph)), ("_add", "_add")),
    ],
    ids=["a rectifier", "limits", "a value twice", "two values"],
)
def test_constants_before_a_quantizer_take_its_zero(
    between: Callable[[Quantized, str], str], names: tuple[str, str], zero: int
) -> None:
    """The second layer reads bytes, so the first stores them."""
    graph = Quantized("uint8", zero, largest=NARROW)
    first = graph.node("MatMul", graph.bytes_of("x"), graph.weight(32, 24, axis=1))
    first = graph.node("Add", first, graph.constant(graph.rng.standard_normal(24).astype(np.float32)))
    second = graph.node("MatMul", graph.bytes_of(between(graph, first)), graph.weight(24, 16, axis=1))
    model, shapes = graph.model({"x": (5, 32)}, graph.bytes_of(second)), {"x": (5, 32)}
    assert _check(model, shapes, HASWELL) >= 2
    tasks = extract_tasks(fuse(read_onnx(model, {}), HASWELL.target))
    wanted = f"_multiply_add{names[zero > 0]}_tir_round_maximum_minimum_cast"
    assert any(wanted in task.name for task in tasks), [task.name for task in tasks]


@needs_avx2
@pytest.mark.parametrize("case", ["convolution", "dense"])
def test_offset_and_bias_are_one_addition(case: str) -> None:
    model, _ = CASES[case](Quantized("uint8", 121, largest=NARROW))
    names = [task.name for task in extract_tasks(fuse(read_onnx(model, {}), HASWELL.target))]
    [(before, after)] = re.findall(r"(conv2d|matmul)_cast_multiply_add_(maximum|tir_round)", " ".join(names))
    assert (before, after) == {"convolution": ("conv2d", "maximum"), "dense": ("matmul", "tir_round")}[case]


def _dense_layer(graph: Quantized, x: str, scale: float) -> str:
    y = graph.node("MatMul", x, graph.weight(32, 32, axis=1))
    return graph.bytes_of(
        graph.node("Add", y, graph.constant(graph.rng.standard_normal(32, np.float32))), scale
    )


def _residual_layer(graph: Quantized, x: str, scale: float) -> str:
    """Quantize between operators of one kernel, too."""
    y = graph.bytes_of(graph.node("MatMul", x, graph.weight(32, 32, axis=1)), scale / 2)
    return graph.bytes_of(graph.node("Add", graph.bytes_of(graph.node("Tanh", y), scale / 3), x), scale)


def _product_layer(graph: Quantized, x: str, scale: float) -> str:
    turned = graph.node("Transpose", x, perm=[0, 2, 1])
    return graph.bytes_of(graph.node("MatMul", x, turned), scale * 10)


@pytest.mark.parametrize("target", ["vnni", "avx2"])
@pytest.mark.parametrize("layer", [_dense_layer, _residual_layer, _product_layer])
def test_layers_that_differ_in_scales_and_zeros_are_one_task(
    layer: Callable[[Quantized, str, float], str], target: str
) -> None:
    """Only the last layer writes floats."""
    graph = Quantized("uint8", 121, largest=NARROW)
    x = graph.bytes_of("x")
    for number in range(4):
        graph.zero = 115 + number
        x = layer(graph, x, 0.05 + 0.01 * number)
    model = graph.model({"x": (2, 32, 32)}, x)
    fused = fuse(read_onnx(model, {}), {"vnni": VNNI, "avx2": HASWELL.target}[target])
    tasks = [task for task in extract_tasks(fused) if "matmul" in task.name]
    # What is taken from a table is stored as bytes, so the floats of the model's output are another kernel.
    weights = [4] if layer is _residual_layer else [1, 3]
    assert sorted(task.weight for task in tasks) == weights, [task.name for task in tasks]


FUNCTIONS: Mapping[str, Callable[[Quantized, str], str]] = {
    "sigmoid": lambda graph, x: graph.node("Sigmoid", x),
    "swish": lambda graph, x: graph.node("Mul", x, graph.bytes_of(graph.node("Sigmoid", x), 0.004)),
    "gelu": lambda graph, x: graph.node("Mul", x, graph.node("Erf", graph.bytes_of(x, SCALE / 3))),
    "exp of tanh": lambda graph, x: graph.node("Exp", graph.bytes_of(graph.node("Tanh", x), 0.01)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", slow_lane_except(KINDS, KINDS[-1], seconds=0.3))
def test_functions_of_bytes_are_tables_with_the_values_of_onnx_runtime(
    name: str, kind: tuple[str, int]
) -> None:
    graph = Quantized(*kind)
    y = graph.bytes_of(FUNCTIONS[name](graph, graph.bytes_of("x")), 0.017)
    model = graph.model({"x": (4, 64)}, y)
    # Every byte occurs.
    x = np.ravel(np.arange(256) - 128).astype(np.float32).reshape(4, 64) * np.float32(SCALE)
    (expected,) = _without_kernels_of_bytes(model)(None, {"x": x})
    fused = fuse(read_onnx(model, {}), HASWELL.target)
    np.testing.assert_array_equal(_run(fused, [x], DEVICE.target), expected)
    dags = [read_dag(from_json(task.module_json)) for task in extract_tasks(fused)]
    assert not any(node.is_expensive for dag in dags for node in dag.nodes)
    assert any(buffer.shape == (256,) for dag in dags for buffer in dag.buffers)


@pytest.mark.parametrize("kind", slow_lane_except(KINDS, KINDS[0]))
@pytest.mark.parametrize("target", ["vnni", "avx2"])
def test_a_block_with_swish_and_squeeze_and_excite_stores_bytes(target: str, kind: tuple[str, int]) -> None:
    """As in EfficientNet: a swish, a depthwise convolution, its mean, and the scaling by it."""
    graph = Quantized(*kind, largest=NARROW)

    def swish(x: str) -> str:
        return graph.bytes_of(FUNCTIONS["swish"](graph, graph.bytes_of(x)))

    first = swish(graph.node("Conv", graph.bytes_of("x"), graph.weight(16, 8, 1, 1, axis=0)))
    deep = graph.node("Conv", first, graph.weight(16, 1, 3, 3, axis=0), group=16, pads=[1, 1, 1, 1])
    second = swish(deep)
    mean = graph.bytes_of(graph.node("ReduceMean", second, axes=[2, 3]))
    gate = graph.bytes_of(graph.node("Sigmoid", graph.bytes_of(mean, 0.01)), 0.004)
    scaled = graph.bytes_of(graph.node("Mul", second, gate))
    last = graph.node("Conv", scaled, graph.weight(8, 16, 1, 1, axis=0))
    model = graph.model({"x": (1, 8, 6, 6)}, graph.bytes_of(last))
    if target == "avx2":
        _check(model, {"x": (1, 8, 6, 6)}, HASWELL, _without_kernels_of_bytes(model))
    fused = fuse(read_onnx(model, {}), {"vnni": VNNI, "avx2": HASWELL.target}[target])
    kernels = [str(call.ty.dtype) for call in kernel_calls(fused)]
    # The input's quantizer, two convolutions, the mean and the scaling store bytes. The last convolution and
    # the output's layout have floats.
    assert len(kernels) == 7
    assert set(kernels[:-2]) <= {"uint8", "int8"}


INTEGER_OPERATORS = """<ir_version: 9, opset_import: ["" : 17]>
model (float[1,8,6,6] x) => (float[1,16,16] y)
<float s = {0.031}, float t = {0.047}, float ws = {0.0137}, uint8 z = {119}, int8 w0 = {0},
 int64[3] shape = {1, 16, 36}, int8[1] half = {-3}>
{
  q = QuantizeLinear (x, s, z)
  c = QLinearConv <pads = [1, 1, 1, 1]> (q, s, z, w, ws, w0, t, z)
  d = QLinearConv <group = 16> (c, t, z, depthwise, ws, w0, t, z)
  i = ConvInteger (d, pointwise, z)
  f = Cast <to = 1> (i)
  r = QuantizeLinear (f, t, half)
  row = Reshape (r, shape)
  m = MatMulInteger (row, v, half)
  y = Cast <to = 1> (m)
}"""


@pytest.mark.parametrize(
    "device", [pytest.param(DEVICE, marks=needs_vnni), pytest.param(HASWELL, marks=needs_avx2)]
)
def test_operators_on_integers_reach_the_instructions(device: Device) -> None:
    """The sums are exact, so they equal the evaluator's. ONNX Runtime's saturate without VNNI."""
    model = parser.parse_model(INTEGER_OPERATORS)
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 8, 3, 3), "depthwise": (16, 1, 1, 1), "pointwise": (16, 16, 1, 1), "v": (36, 16)}
    for name, shape in shapes.items():
        weight = rng.integers(-128, 128, shape).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    evaluate = ReferenceEvaluator(model).run
    assert _check(model.SerializeToString(), {"x": (1, 8, 6, 6)}, device, evaluate) == 3


@pytest.mark.parametrize("kind", slow_lane_except([("uint8", 121), ("int8", -7)], ("int8", -7), seconds=1))
@pytest.mark.parametrize(("case", "count"), [("convolution", 1), ("three channels", 1), ("dense", 0)])
def test_quantized_operators_reach_tensor_cores(case: str, count: int, kind: tuple[str, int]) -> None:
    """They need sixteen rows, more than the dense layer has."""
    model, _ = CASES[case](Quantized(*kind))
    tasks = extract_tasks(fuse(read_onnx(model, {}), GPU.target))
    dags = [read_dag(from_json(task.module_json)) for task in tasks]
    assert count == sum(any(one.of_kind(StageKind.TENSOR) for one in generate(dag, GPU)) for dag in dags)
    file = read_file(model, {})
    assert len(list(verify(file, import_file(file), DEVICE.target, GPU.target))) >= 2


@needs_vnni
@pytest.mark.slow_lane
def test_every_convolution_of_a_network_quantized_by_onnx_runtime_reaches_them() -> None:
    model = quantize(make("resnet18", tiny=True)).SerializeToString()
    _verify(model)
    tasks = extract_tasks(fuse(read_onnx(model, {}), DEVICE.target))
    dags = [read_dag(from_json(task.module_json)) for task in tasks if "conv2d" in task.name]
    assert len(dags) >= 10
    for dag in dags:
        assert any(stage.intrinsic for sketch in generate(dag, DEVICE) for stage in sketch.stages)


@needs_vnni
def test_a_depthwise_convolution_computes_in_floats_and_is_right() -> None:
    model, shapes = convolution(Quantized("uint8", 9), groups=8)
    assert _check(model, shapes) == 0


@pytest.mark.parametrize("case", CASES)
def test_without_such_instructions_the_operators_stay_as_they_were(case: str) -> None:
    model, _ = CASES[case](Quantized("uint8", 121))
    plain = '{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"nehalem"}'
    dags = [
        read_dag(from_json(task.module_json)) for task in extract_tasks(fuse(read_onnx(model, {}), plain))
    ]
    sums = [dag.buffer[node.write.buffer].dtype for dag in dags for node in dag.nodes if node.reduction]
    assert sums == ["float32"]


def test_layers_that_are_right_are_verified() -> None:
    for dtype, zero in (("uint8", 121), ("int8", -7)):
        _verify(convolution(Quantized(dtype, zero))[0])


def test_a_zero_point_that_is_imported_wrongly_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the two bytes differ by one, the outputs are far within the bound of whole networks."""
    right = operators.CONVERTERS["", "DequantizeLinear"]

    def off_by_one(graph: Graph, node: Node) -> Value | None:
        if node.input(0).constant is not None or node.outputs[0] != "v1":
            return right(graph, node)  # type: ignore[return-value]
        zero = node.input(2).known("the zero point") + np.uint8(1)
        return graph.op("DequantizeLinear", node.input(0), node.input(1), zero)

    monkeypatch.setitem(operators.CONVERTERS, ("", "DequantizeLinear"), off_by_one)
    with pytest.raises(ModelError, match=r"^operator QuantizeLinear of .*'v5' is imported wrongly"):
        _verify(convolution(Quantized("uint8", 121))[0])


@needs_vnni
def test_a_zero_point_that_is_lost_on_the_way_to_dot_products_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = quantized._Quantized

    def off_by_one(data: relax.Expr, scale: Any, zero: int, axis: int) -> Any:
        return right(data, scale, zero + 1 if zero else 0, axis)

    monkeypatch.setattr(quantized, "_Quantized", off_by_one)
    with pytest.raises(ModelError, match=r"operator QuantizeLinear of .* is imported wrongly"):
        _verify(dense(Quantized("uint8", 121))[0])


def test_quantized_values_may_differ_by_a_step_only_near_the_middle() -> None:
    wanted = np.arange(200, dtype=np.uint8)
    off = np.where(wanted < 50, wanted + 1, wanted).astype(np.uint8)
    assert compare(wanted, off, wanted < 50) == ""
    assert compare(wanted, off, None) == "50 of 200 values are off by a step"
    assert compare(wanted, off, None, max_share=0.5) == ""
    off[0] = 2
    assert compare(wanted, off, wanted < 50) == "1 of 200 values are off by more than a step"


def _residual_block() -> tuple[bytes, dict[str, Any]]:
    """A block of a ResNet that changes its channels."""
    graph = Quantized("uint8", 0, NARROW)

    def product(x: str, kernel: int, inputs: int) -> str:
        weight = graph.weight(32, inputs, kernel, kernel, axis=0)
        return graph.node("Conv", x, weight, pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2)

    x = graph.bytes_of(graph.node("Relu", graph.bytes_of("x")))
    inner = graph.bytes_of(graph.node("Relu", product(x, 3, 16)), 50 * SCALE)
    joined = graph.node(
        "Add", graph.bytes_of(product(inner, 3, 32), 150 * SCALE), graph.bytes_of(product(x, 1, 16), SCALE)
    )
    shapes = {"x": (1, 16, 9, 8)}
    return graph.model(shapes, graph.bytes_of(graph.node("Relu", joined), 150 * SCALE)), shapes


@needs_avx2
def test_a_quantized_block_is_the_same_to_the_last_bit_by_winograd() -> None:
    model, shapes = _residual_block()
    variants = VariantModel.of(read_onnx(model, {}), HASWELL.target)
    others = [task for task in variants.tasks() if task.variant]
    assert {task.variant for task in others} == {"winograd_2_int16"}
    assert all(task.exact for task in others)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) * 5 for shape in shapes.values()]
    expected = _run(variants.fused, inputs, HASWELL.target)
    assert len(np.unique(expected)) > 20
    for task in others:
        module = variants.choose([task.workload_hash])
        assert np.array_equal(_run(module, inputs, HASWELL.target), expected)
        assert "dot_8x2_int16_pmaddwd" in _intrinsics_of(task.module_json, HASWELL)


def test_dot_products_of_bytes_are_not_replaced_by_winograd() -> None:
    model, _ = _residual_block()
    assert not any(task.variant for task in VariantModel.of(read_onnx(model, {}), VNNI).tasks())


def _verify(model: bytes) -> None:
    file = read_file(model, {})
    assert len(list(verify(file, import_file(file), DEVICE.target, DEVICE.target))) >= 2


def _check(
    model: bytes,
    shapes: Mapping[str, Sequence[int]],
    device: Device = DEVICE,
    reference: Callable[[None, dict[str, Any]], Any] | None = None,
) -> int:
    """Compare the compiled model with ONNX Runtime or another reference. Return the number of subgraphs with
    dot products.
    """
    fused = fuse(read_onnx(model, {}), device.target)
    rng = np.random.default_rng(1)
    feeds = {name: rng.standard_normal(shape).astype(np.float32) * 3 for name, shape in shapes.items()}
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (expected,) = (reference or session.run)(None, feeds)
    actual = _run(fused, list(feeds.values()), device.target)
    # What lies between two steps may be rounded to either.
    assert np.abs(actual - expected).max() < 1.01 * SCALE
    assert np.mean(np.abs(actual - expected) > 0.01 * SCALE) < 0.01
    dags = [read_dag(from_json(task.module_json)) for task in extract_tasks(fused)]
    return sum(
        any(stage.intrinsic for sketch in generate(dag, device) for stage in sketch.stages) for dag in dags
    )


def _without_kernels_of_bytes(model: bytes) -> Callable[[None, dict[str, Any]], Any]:
    """Return a run of ONNX Runtime that computes quantized layers in floats."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda names, feeds: session.run(names, feeds)


def _intrinsics(model: bytes, device: Device) -> set[str]:
    """Return the names of the dot products of the sketches of all subgraphs."""
    tasks = extract_tasks(fuse(read_onnx(model, {}), device.target))
    return set().union(*(_intrinsics_of(task.module_json, device) for task in tasks))


def _intrinsics_of(workload: str, device: Device) -> set[str]:
    sketches = generate(read_dag(from_json(workload)), device)
    return {stage.intrinsic for sketch in sketches for stage in sketch.stages if stage.intrinsic}


def _run(fused: tvm.IRModule, inputs: Sequence[Array], target: str) -> Array:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        build_module(fused, {}, target, path)
        return np.asarray(load_main(path)(*map(tvm.runtime.tensor, inputs)).numpy())
