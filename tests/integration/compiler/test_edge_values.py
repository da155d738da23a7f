"""Operators agree with ONNX Runtime on NaN, infinities, extremes of types and long sums of float16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tvm import relax

from compiler.importing.model import checked_model, read_onnx
from compiler.importing.spec import ModelError, TensorSpec
from compiler.importing.values import numpy_dtype
from compiler.verifying.imported import Imported
from tests.devices import UNOPTIMIZED as TARGET
from tests.marks import slow_lane_except

Array = NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
    "float64": np.dtype(np.float64),
}
# Rounding errors that may add up in an operator of one type.
ERRORS = {"float32": 3e-7, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-14}
SPECIAL = (math.nan, math.inf, -math.inf, 0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 20, -20, 100, -100)


def model(
    kind: str,
    inputs: Sequence[Array],
    constants: Sequence[Array] = (),
    outputs: int = 1,
    opset: int = 22,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return the model of one operator."""
    given = {f"x{k}": array for k, array in enumerate(inputs)}
    fixed = {f"c{k}": array for k, array in enumerate(constants)}
    node = helper.make_node(kind, [*given, *fixed], [f"y{k}" for k in range(outputs)], **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in given.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output],
        [numpy_helper.from_array(array, name) for name, array in fixed.items()],
    )
    is_bool = kind in ("IsNaN", "IsInf", "Equal")
    for output in graph.output:
        output.type.tensor_type.elem_type = onnx.TensorProto.BOOL if is_bool else onnx.TensorProto.FLOAT
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def computed(proto: onnx.ModelProto, inputs: Sequence[Array], tuned: bool = False) -> list[Array]:
    imported = Imported(read_onnx(proto.SerializeToString(), {}), TARGET, TARGET if tuned else "")
    return list(imported.compute({f"x{k}": array for k, array in enumerate(inputs)}).values())


def by_onnxruntime(proto: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, {f"x{k}": array for k, array in enumerate(inputs)}))


def assert_same(found: Array, wanted: Array, error: float) -> None:
    """Compare NaN and infinities as they are, and numbers relative to a result or to one."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(np.where(np.isinf(a), a, 0), np.where(np.isinf(b), b, 0))
    finite = np.isfinite(a)
    np.testing.assert_allclose(a[finite], b[finite], rtol=error, atol=error)


def edge_values(dtype: np.dtype[Any]) -> Array:
    random = np.random.default_rng(0).normal(size=48) * 3
    return np.concatenate([SPECIAL, random]).astype(dtype)


_PLAIN = (
    *("Abs", "Ceil", "Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Round", "Sqrt"),
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tanh"),
    *("Relu", "Selu", "Celu", "Elu", "LeakyRelu", "HardSigmoid", "HardSwish", "Mish"),
    *("Sign", "Softplus", "Softsign", "ThresholdedRelu", "Gelu", "IsNaN", "IsInf"),
)
ELEMENTWISE: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in _PLAIN},
    "Clip": {"constants": (-1.0, 2.0)},
    "Gelu tanh": {"approximate": "tanh"},
    "Shrink": {"lambd": 0.7, "bias": 0.2},
}


# ONNX Runtime's sign of a NaN of float16 depends on the number of elements.
CASES = [(name, kind) for name in ELEMENTWISE for kind in TYPES if (name, kind) != ("Sign", "float16")]


@pytest.mark.parametrize("case", slow_lane_except(CASES, *CASES[::7], seconds=0.2))
def test_an_elementwise_operator_agrees_at_edge_values(case: tuple[str, str]) -> None:
    """ONNX Runtime has no kernels for some types, and computes them in float32."""
    name, dtype = case
    attributes = dict(ELEMENTWISE[name])
    kind = name.partition(" ")[0]
    data = edge_values(TYPES[dtype])
    constants = attributes.pop("constants", ())

    def proto(kept: Array) -> onnx.ModelProto:
        return model(kind, [kept], [np.array(one, kept.dtype) for one in constants], **attributes)

    try:
        wanted, error = by_onnxruntime(proto(data), [data])[0], ERRORS[dtype]
    except Exception:  # ONNX Runtime's class for a kernel that it lacks isn't public
        # Of a wider type, float32 holds no large results.
        data = np.clip(data, -50, 50) if dtype == "float64" else data
        wide = data.astype(np.float32)
        wanted, error = by_onnxruntime(proto(wide), [wide])[0], max(ERRORS[dtype], 2e-6)
        if wanted.dtype != bool:
            with np.errstate(over="ignore"):
                wanted = wanted.astype(data.dtype)
    for tuned in (False, True):
        (found,) = computed(proto(data), [data], tuned)
        assert found.dtype == wanted.dtype
        assert_same(found, wanted, error)


def of_float64(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda data: np.array([function(float(one)) for one in data])


_OWN_NAMES = ("Erf", "Exp", "Sin", "Cos", "Sinh", "Tanh", "Asinh")
FLOAT64: Mapping[str, tuple[Callable[[float], float], float]] = {
    **{name: (getattr(math, name.lower()), 3) for name in _OWN_NAMES},
    "Acos": (math.acos, 0.99),
    "Asin": (math.asin, 0.99),
    "Atan": (math.atan, 30),
    "Atanh": (math.atanh, 0.99),
    "Cosh": (math.cosh, 3),
    "Tan": (math.tan, 1.5),
    "Gelu": (lambda x: x * math.erfc(-x / math.sqrt(2)) / 2, 3),
    "Softplus": (lambda x: math.log1p(math.exp(x)), 5),
    "Mish": (lambda x: x * math.tanh(math.log1p(math.exp(x))), 5),
    "Sigmoid": (lambda x: 1 / (1 + math.exp(-x)), 5),
    "Elu": (lambda x: x if x > 0 else math.expm1(x), 3),
    "Celu": (lambda x: x if x > 0 else math.expm1(x), 3),
}


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("kind", FLOAT64)
def test_float64_has_the_digits_of_float64(kind: str, tuned: bool) -> None:
    function, limit = FLOAT64[kind]
    data = np.linspace(-limit, limit, 41)
    (found,) = computed(model(kind, [data]), [data], tuned)
    np.testing.assert_allclose(found, of_float64(function)(data), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("kind", ["Atanh", "Tanh", "Sinh", "Asinh", "Erf"])
def test_small_numbers_keep_their_digits(kind: str) -> None:
    data = np.array([1e-30, -1e-20, 1e-9, 1e-4], np.float32)
    (found,) = computed(model(kind, [data]), [data])
    factor = 2 / math.sqrt(math.pi) if kind == "Erf" else 1
    np.testing.assert_allclose(found, data * factor, rtol=2e-6)


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_the_extreme_of_two_tensors_propagates_nan(kind: str, dtype: str, tuned: bool) -> None:
    first = edge_values(TYPES[dtype])
    second = first[::-1].copy()
    (found,) = computed(model(kind, [first, second]), [first, second], tuned)
    function = np.maximum if kind == "Max" else np.minimum
    assert_same(found, function(first.astype(np.float64), second.astype(np.float64)), 0)


NAN_ROWS = np.array(
    [
        [2, math.nan, 7, 4, 1],
        [math.nan, 2, 7, 4, 1],
        [2, 4, 7, 1, math.nan],
        [1, 2, 3, 4, 5],
        [math.nan] * 5,
        [-math.inf] * 5,
        [math.inf] * 5,
        [3, 3, 1, 1, 2],
    ]
)


@pytest.mark.parametrize("dtype", slow_lane_except(TYPES, "float32", "bfloat16", seconds=0.2))
@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "Hardmax", "GlobalMaxPool"])
def test_the_extreme_of_a_row_is_its_first_nan(kind: str, dtype: str) -> None:
    """NaN is the extreme, and the first one counts, as numpy has it."""
    data = NAN_ROWS.astype(TYPES[dtype])
    expected = {
        "ArgMax": lambda: NAN_ROWS.argmax(1),
        "ArgMin": lambda: NAN_ROWS.argmin(1),
        "ReduceMax": lambda: NAN_ROWS.max(1),
        "ReduceMin": lambda: NAN_ROWS.min(1),
        "Hardmax": lambda: np.eye(5)[NAN_ROWS.argmax(1)],
        "GlobalMaxPool": lambda: NAN_ROWS.max(1),
    }
    attributes: dict[str, Any] = {"axis": 1} if kind in ("ArgMax", "ArgMin", "Hardmax") else {}
    attributes |= {"keepdims": 0} if kind in ("ArgMax", "ArgMin", "ReduceMax", "ReduceMin") else {}
    constants = [np.array([1])] if kind.startswith("Reduce") else []
    shaped = data[None] if kind == "GlobalMaxPool" else data
    for tuned in (False, True):
        (found,) = computed(model(kind, [shaped], constants, **attributes), [shaped], tuned)
        np.testing.assert_array_equal(
            found.reshape(expected[kind]().shape).astype(np.float64), expected[kind]()
        )


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    "dtype",
    slow_lane_except(["int8", "uint8", "int16", "int32", "int64", "uint64"], "int8", "uint64", seconds=0.1),
)
@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
def test_the_first_or_last_of_equal_extremes_is_found(kind: str, dtype: str, last: int) -> None:
    limits = np.iinfo(dtype)
    data = np.full((3, 4), limits.min if kind == "ArgMax" else limits.max, dtype)
    (found,) = computed(model(kind, [data], axis=1, keepdims=0, select_last_index=last), [data])
    assert found.tolist() == [3 * last] * 3


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("dtype", [*TYPES, "uint8", "int8"])
def test_padding_is_never_the_maximum(dtype: str, tuned: bool) -> None:
    kind = TYPES.get(dtype, np.dtype(dtype) if dtype not in TYPES else None)
    assert kind is not None
    least = -math.inf if dtype in TYPES else np.iinfo(kind).min
    data = np.full((1, 2, 4, 4), least).astype(kind)
    (found,) = computed(model("MaxPool", [data], kernel_shape=[3, 3], pads=[1] * 4), [data], tuned)
    np.testing.assert_array_equal(found.astype(np.float64), np.full((1, 2, 4, 4), float(least)))


# By operator, its constants, its attributes, and the value of each of 4096 equal elements.
LONG_SUMS: Mapping[str, tuple[Sequence[Array], Mapping[str, Any], float]] = {
    **{name: ([np.array([-1])], {}, 30) for name in ("ReduceMean", "ReduceL2", "ReduceLogSumExp")},
    **{
        name: ([np.array([-1])], {}, 5)
        for name in ("ReduceSum", "ReduceL1", "ReduceLogSum", "ReduceSumSquare")
    },
    "CumSum": ([np.array(2)], {}, 5),
    "GlobalAveragePool": ([], {}, 100),
    "AveragePool": ([], {"kernel_shape": [4000]}, 100),
    "LpPool": ([], {"kernel_shape": [4000]}, 30),
    "GlobalLpPool": ([], {}, 30),
    "Softmax": ([], {}, 3),
    "LogSoftmax": ([], {}, 3),
    "LpNormalization": ([], {}, 30),
}


@pytest.mark.parametrize("dtype", slow_lane_except(["float16", "bfloat16"], "float16", seconds=0.2))
@pytest.mark.parametrize("kind", LONG_SUMS)
def test_long_sums_of_halves_are_rounded_once(kind: str, dtype: str) -> None:
    constants, attributes, value = LONG_SUMS[kind]
    data = np.full((1, 2, 4096), value).astype(TYPES[dtype])
    wide = data.astype(np.float32)
    (wanted,) = by_onnxruntime(model(kind, [wide], constants, opset=18, **attributes), [wide])
    with np.errstate(over="ignore"):
        wanted = wanted.astype(data.dtype)
    for tuned in (False, True):
        (found,) = computed(model(kind, [data], constants, opset=18, **attributes), [data], tuned)
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=2 * ERRORS[dtype])


@pytest.mark.parametrize("base", [np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.uint8])
def test_powers_of_integers_are_exact(base: Any, exponent: Any) -> None:
    limit = 15 if base == np.int32 else 31
    data = np.array([3, -3, 7, -1, 1, 0, 2, -2, 5, -1, 1], base)
    number = np.array([limit, limit - 2, 5, 100, 100, 3, limit - 1, limit - 1, 0, 3, 200], exponent)
    (found,) = computed(model("Pow", [data, number]), [data, number])
    wanted = [int(a) ** int(b) for a, b in zip(data, number, strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, base))


def test_negative_powers_of_integers_are_truncated() -> None:
    data, number = np.array([1, -1, -1, 2, 5], np.int64), np.array([-1, -1, -2, -1, -3], np.int64)
    (found,) = computed(model("Pow", [data, number]), [data, number])
    assert found.tolist() == [1, -1, 1, 0, 0]


def test_squares_of_large_integers_are_exact() -> None:
    data = np.array([3037000499, -3000000001], np.int64)
    (found,) = computed(model("Pow", [data], [np.array(2, np.int64)]), [data])
    assert found.tolist() == [3037000499**2, 3000000001**2]


@pytest.mark.parametrize("shape", [(1,), (3, 4, 5)])
def test_booleans_are_compared(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.integers(0, 2, shape).astype(bool) for _ in range(2))
    for tuned in (False, True):
        (found,) = computed(model("Equal", [first, second]), [first, second], tuned)
        np.testing.assert_array_equal(found, first == second)


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    "padding", [{"pads": [1, 0, 2, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}]
)
@pytest.mark.parametrize("p", slow_lane_except([1, 2, 3], 2, seconds=0.1))
def test_norms_of_windows_at_the_edge_agree_with_onnx_runtime(
    p: int, padding: dict[str, Any], ceil_mode: int
) -> None:
    data = np.random.default_rng(0).normal(size=(1, 2, 11, 10)).astype(np.float32)
    dilations = [2, 1] if "pads" in padding else [1, 1]
    proto = model(
        "LpPool",
        [data],
        kernel_shape=[3, 2],
        strides=[2, 3],
        dilations=dilations,
        ceil_mode=ceil_mode,
        p=p,
        **padding,
    )
    (wanted,) = by_onnxruntime(proto, [data])
    (found,) = computed(proto, [data])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_resized_integers_lose_their_fractions(dtype: Any) -> None:
    data = np.random.default_rng(0).integers(0, 100, (1, 1, 4, 4)).astype(dtype)
    constants = [np.array([], np.float32), np.array([1, 1, 0.8, 0.8], np.float32)]
    proto = model("Resize", [data], constants, opset=18, mode="linear")
    proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(data.dtype)
    (wanted,) = by_onnxruntime(proto, [data])
    (found,) = computed(proto, [data])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("exponent", ["float16", "bfloat16"])
def test_a_power_has_the_type_of_its_base(exponent: str) -> None:
    data, number = np.array([1.5, 2, 3], np.float32), np.array([2, 0.5, 3]).astype(TYPES[exponent])
    (found,) = computed(model("Pow", [data, number]), [data, number])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, data ** number.astype(np.float32), rtol=1e-6)


def test_topk_sorts_bfloat16() -> None:
    data = np.array([[1, -3, 5, 2], [-1, -2, -3, -4]]).astype(BFLOAT16)
    values, places = computed(model("TopK", [data], [np.array([2])], outputs=2), [data])
    assert values.astype(np.float32).tolist() == [[5, 2], [-1, -2]]
    assert places.tolist() == [[2, 3], [0, 1]]


@pytest.mark.parametrize("types", [("float16", "float32"), ("float32", "float64"), ("float64", "float32")])
def test_a_sample_has_the_type_of_its_data(types: tuple[str, str]) -> None:
    data, grid = types
    rng = np.random.default_rng(0)
    image, places = rng.normal(size=(1, 2, 4, 4)), rng.uniform(-1, 1, (1, 3, 3, 2))
    inputs = [image.astype(TYPES[data]), places.astype(TYPES[grid])]
    wide = [array.astype(np.float32) for array in inputs]
    (wanted,) = by_onnxruntime(model("GridSample", wide), wide)
    (found,) = computed(model("GridSample", inputs), inputs)
    assert found.dtype == TYPES[data]
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def test_integers_times_a_fraction_are_refused() -> None:
    data = np.ones((2, 2), np.int32)
    with pytest.raises(ModelError, match=r"alpha 0\.5 isn't whole, but the inputs are: cast them to floats"):
        computed(model("Gemm", [data, data, data], alpha=0.5), [data, data, data])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8"])
def test_sign_and_shrink_keep_the_type_of_integers(dtype: str) -> None:
    data = np.array([0, 1, 2, 3, 100], dtype)
    assert computed(model("Sign", [data]), [data])[0].tolist() == [0, 1, 1, 1, 1]
    found = computed(model("Shrink", [data], lambd=1.5, bias=1.0), [data])[0]
    assert (found.dtype, found.tolist()) == (np.dtype(dtype), [0, 0, 1, 2, 99])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_nan_and_infinities_of_small_floats_are_found(dtype: str) -> None:
    data = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))
    wide = data.astype(np.float32)
    for kind, wanted in (("IsNaN", np.isnan(wide)), ("IsInf", np.isinf(wide))):
        proto = model(kind, [data], opset=20)
        np.testing.assert_array_equal(computed(proto, [data])[0], wanted)


def test_topk_of_more_elements_than_the_axis_is_refused() -> None:
    data = np.zeros(3, np.float32)
    with pytest.raises(ModelError, match="it wants 5 elements of 3"):
        computed(model("TopK", [data], [np.array([5])], outputs=2), [data])


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32"])
def test_topk_sorts_integer_types_that_tvm_cannot_sort(dtype: str) -> None:
    limits = np.iinfo(dtype)
    data = np.array([3, limits.max, limits.min, limits.max - 1, 3], dtype)
    values, places = computed(model("TopK", [data], [np.array([3])], outputs=2), [data])
    assert values.tolist() == [limits.max, limits.max - 1, 3]
    assert places.tolist() == [1, 3, 0]


@pytest.mark.parametrize(
    ("data", "scale"), [("float16", "float32"), ("float32", "float16"), ("float64", "float32")]
)
def test_a_normal_has_the_type_of_its_scale(data: str, scale: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 4)), rng.normal(size=4)
    inputs = [x.astype(data), w.astype(scale)]
    (found,) = computed(model("RMSNormalization", inputs, opset=23, axis=-1), inputs)
    wanted = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w
    assert found.dtype == scale
    np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(("queries", "values"), [("float16", "float32"), ("float32", "float16")])
def test_attention_accepts_mixed_types(queries: str, values: str) -> None:
    """The sums are float32, each result has the type of what it is made of."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 2, 3, 4)) for _ in range(3))
    inputs = [q.astype(queries), k.astype(queries), v.astype(values)]
    (found,) = computed(model("Attention", inputs, opset=23), inputs)
    scores = q @ k.swapaxes(2, 3) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert found.dtype == queries
    np.testing.assert_allclose(found, weights / weights.sum(-1, keepdims=True) @ v, rtol=2e-2, atol=2e-3)


def test_a_normalization_keeps_the_digits_of_float64() -> None:
    data = np.random.default_rng(0).normal(size=(2, 3, 4, 5)) + 1e4
    (found,) = computed(model("MeanVarianceNormalization", [data], opset=13), [data])
    axes = (0, 2, 3)
    centred = data - data.mean(axes, keepdims=True)
    np.testing.assert_allclose(found, centred / (data.std(axes, keepdims=True) + 1e-9), rtol=1e-9)


def test_a_slope_counts_for_negative_numbers_only() -> None:
    data, slope = np.array([1, -1, 2, np.inf], np.float32), np.array([np.inf, 2, np.nan, np.inf], np.float32)
    (found,) = computed(model("PRelu", [data, slope]), [data, slope])
    np.testing.assert_array_equal(found, np.array([1, -2, 2, np.inf], np.float32))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_a_resized_extent_is_computed_in_float32(dtype: str) -> None:
    """5 * 1.4 is 7 there, and less than 7 in float64. Places between float64 have its digits."""
    data = (np.random.default_rng(0).normal(size=(1, 1, 5, 5)) * 9).astype(dtype)
    constants = [np.array([], np.float32), np.array([1, 1, 1.4, 0.7], np.float32)]
    proto = model("Resize", [data], constants, opset=19, mode="linear")
    proto.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(data.dtype)
    (found,) = computed(proto, [data])
    assert found.shape == (1, 1, 7, 3)
    if dtype == "float64":
        scale = float(np.float32(1.4))
        places = np.clip((np.arange(7) + 0.5) / scale - 0.5, 0, 4)
        columns = np.clip((np.arange(3) + 0.5) / float(np.float32(0.7)) - 0.5, 0, 4)
        rows = np.stack([np.interp(places, np.arange(5), column) for column in data[0, 0].T], axis=1)
        wanted = np.stack([np.interp(columns, np.arange(5), row) for row in rows])
        np.testing.assert_allclose(found[0, 0], wanted, rtol=1e-13)
    else:
        np.testing.assert_allclose(found, by_onnxruntime(proto, [data])[0], rtol=1e-5)


@pytest.mark.parametrize("size", [[1, 2, 1, 1], [1, 2, 1, 3], [2, 2, 3, 4], [1, 1, 2, 1, 3]])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_an_affine_grid_agrees_with_onnx_runtime(size: list[int], align_corners: int) -> None:
    dims = len(size) - 2
    data = np.random.default_rng(0).normal(size=(size[0], dims, dims + 1)).astype(np.float32)
    proto = model("AffineGrid", [data], [np.array(size)], opset=20, align_corners=align_corners)
    (wanted,) = by_onnxruntime(proto, [data])
    np.testing.assert_allclose(computed(proto, [data])[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 2, 1, 4), (1, 2, 4, 1)])
@pytest.mark.parametrize("mode", slow_lane_except(["linear", "nearest", "cubic"], "linear", "nearest"))
def test_grid_sample_reflects_in_one_element(shape: tuple[int, ...], mode: str) -> None:
    rng = np.random.default_rng(0)
    data, grid = (
        rng.normal(size=shape).astype(np.float32),
        rng.uniform(-1, 1, (1, 2, 3, 2)).astype(np.float32),
    )
    options: dict[str, Any] = {"mode": mode, "padding_mode": "reflection", "align_corners": 1}
    proto = model("GridSample", [data, grid], opset=20, **options)
    (wanted,) = by_onnxruntime(proto, [data, grid])
    np.testing.assert_allclose(computed(proto, [data, grid])[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2fnuz"])
def test_dropout_leaves_small_floats_unchanged(dtype: str) -> None:
    data = np.arange(8, dtype=np.uint8).view(numpy_dtype(dtype))
    (found,) = computed(model("Dropout", [data], opset=22), [data])
    assert found.dtype == data.dtype
    np.testing.assert_array_equal(found.view(np.uint8), data.view(np.uint8))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_floats_are_divided_by_zero(zero: float) -> None:
    data, divisor = np.array([1, -2, 0, np.nan], np.float32), np.full((), zero, np.float32)
    proto = model("Div", [data], [divisor])
    assert_same(computed(proto, [data])[0], by_onnxruntime(proto, [data])[0], 0)


def test_the_last_element_is_read_from_the_end() -> None:
    """PyTorch writes x[:, -1] like this. TVM would read foreign memory."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            last = relax.op.take(x, relax.const(-1, "int64"), axis=1, mode="fast")
            result = builder.emit_output(builder.emit(last))
        builder.emit_func_output(result)
    imported = checked_model(builder.get(), (TensorSpec("x", (2, 3), "float32"),), ["y"])
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    for tuned in ("", TARGET):
        np.testing.assert_array_equal(Imported(imported, TARGET, tuned).compute({"x": data})["y"], [2, 5])
