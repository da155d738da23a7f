"""Inputs at the edges of types' ranges, and the rules for differences there.

An operator that is right for ordinary numbers may be wrong for NaN, infinities, the least and the greatest
number, signed zeros, and ties. ONNX Runtime, PyTorch, XLA or LiteRT is the reference. If the standard leaves
a result open, as for an integer that is cast from NaN, a difference becomes a note.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.onnx_file import OnnxFile, node_name
from compiler.importing.spec import TensorSpec
from compiler.importing.values import numpy_dtype
from compiler.measuring.outputs import compare_outputs
from compiler.verifying.steps.step import Step

Array = NDArray[Any]
# A TFLite operator with weights of bytes beside floats: LiteRT rounds its data to bytes, too.
DYNAMIC_RANGE = "dynamic range"
# A convolution of batches in groups: XLA also multiplies zeros, so that NaN spreads to other groups.
BATCH_GROUPS = "batch groups"
# TFLite's operators with an activation: LiteRT bounds their results by the greatest number, also without one.
_BOUNDED = frozenset(
    {
        *("ADD", "SUB", "MUL", "DIV", "CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"),
        *("ADD_N", "AVERAGE_POOL_2D", "CONV_3D_TRANSPOSE", "L2_POOL_2D", "MAX_POOL_2D", "TRANSPOSE_CONV"),
    }
)
# Operators that convert floats to integers, or order them. Their results are open for NaN, infinities, and
# numbers that the integer type doesn't have.
UNDEFINED_FOR_SPECIAL_VALUES = {
    *("Cast", "CastLike", "QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
    *("TopK", "NonMaxSuppression", "Unique", "RoiAlign", "MaxRoiPool", "GridSample", "DeformConv"),
    *("Hardmax", "LRN", "OneHot", "Range", "NonZero"),
    # PyTorch's; its vectorized gelu(inf) is NaN, and so are some of its powers of -inf
    *(
        "gelu",
        "pow",
        "_to_copy",
        "topk",
        "grid_sampler_2d",
        "grid_sampler_3d",
        "histc",
        "bucketize",
        "searchsorted",
    ),
    # StableHLO's
    *("stablehlo.convert", "stablehlo.sort", "chlo.top_k"),
    # TFLite's: its kernels differ in which operand of a comparison with NaN they keep.
    *("CAST", "QUANTIZE", "TOPK_V2", "ARG_MAX", "ARG_MIN", "MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN"),
    *("MAX_POOL_2D", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "NON_MAX_SUPPRESSION_V4"),
    *("NON_MAX_SUPPRESSION_V5", "SIGN", "ONE_HOT", "FAKE_QUANT", DYNAMIC_RANGE, BATCH_GROUPS),
    *("UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN"),
}
_CASTS = {"Cast", "CastLike", "_to_copy", "stablehlo.convert", "CAST"}
# Integer operators of ONNX, PyTorch and TFLite. They are open for a divisor of zero, for a shift by too much,
# and for an overflow.
_DIVISIONS = frozenset(
    {*("Div", "Mod", "div", "remainder", "fmod", "floor_divide", "DIV", "FLOOR_DIV", "FLOOR_MOD")}
)
_SHIFTS = frozenset(
    {
        *("BitShift", "RIGHT_SHIFT", "__lshift__", "__rshift__"),
        *("bitwise_left_shift", "bitwise_right_shift"),
    }
)
_POWERS = frozenset({"Pow", "pow", "POW"})
_SUMS = frozenset(
    {
        *("ReduceL1", "ReduceMean", "ReduceSum", "ReduceSumSquare", "ADD", "SUB", "MUL", "NEG", "ABS"),
        *("SQUARE", "SUM", "MEAN", "CUMSUM"),
    }
)
# Functions that are computed in floats and cut off, and products of many numbers.
_ROUNDED_PRODUCTS = frozenset({"ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "REDUCE_PROD"})
UNDEFINED_FOR_INTEGERS = _DIVISIONS | _SHIFTS | _POWERS | _SUMS | _ROUNDED_PRODUCTS
# Sums of integers up to this absolute value don't overflow.
_SMALL = 9
# Operators that may spread NaN further than ONNX Runtime does. NaN spreads further if products with zeros are
# computed. ONNX Runtime's recurrent kernels lose it, its pooling keeps only the NaN of a window's last
# element, its scatters not every NaN of the data, and its MatMulNBits a NaN that it rounds to 8 bits.
_SPREADING = {
    *("Conv", "ConvTranspose", "DeformConv", "MatMul", "Gemm", "Einsum", "Attention", "MultiHeadAttention"),
    *("Resize", "Upsample", "Col2Im", "GRU", "LSTM", "RNN", "GroupQueryAttention"),
    *("MaxPool", "GlobalMaxPool", "ScatterElements", "ScatterND", "Det", "MatMulNBits"),
    # PyTorch's
    *("convolution", "mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "einsum", "dot", "mv"),
    *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("lstm", "gru", "rnn_tanh", "rnn_relu", "upsample_bicubic2d"),
    *("upsample_bilinear2d", "upsample_linear1d", "upsample_trilinear3d", "upsample_nearest2d", "col2im"),
    *("grid_sampler_2d", "grid_sampler_3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
    # StableHLO's; XLA leaves out some products with zeros
    *(
        "stablehlo.multiply",
        "stablehlo.dot_general",
        "stablehlo.dot",
        "stablehlo.convolution",
        "stablehlo.reduce_window",
    ),
    # TFLite's
    *("CONV_2D", "CONV_3D", "CONV_3D_TRANSPOSE", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV"),
    *("BATCH_MATMUL", "FULLY_CONNECTED"),
    *("RESIZE_BILINEAR", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM", "LSTM", "RNN"),
    *("UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "SVDF"),
}
# Operators that add products and subtract sums: rounding errors and the order of steps decide whether
# infinities become NaN, and their signs.
_CANCELLING = frozenset(
    {
        *("DFT", "STFT", "GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("MeanVarianceNormalization", "SkipLayerNormalization"),
        # PyTorch's
        *("native_group_norm", "native_layer_norm"),
    }
)
# Operators between elements: a rounding error of a place decides whether an infinite neighbor has a weight.
_INTERPOLATING = frozenset({"Resize", "Upsample"})
# Descriptions of the edge inputs, for messages. Models of floats get EDGES, models of integers SMALL as well,
# and models that divide integers ZERO_DIVISORS.
SMALL = "small integers of both signs"
ZERO_DIVISORS = "divisors of zero"
QUOTIENT_IS_OPEN = "integers may be divided by zero: the standard leaves the quotient open"
LIMITS, NAN, INFINITIES, LEAST = EDGES = (
    "the least and greatest numbers, zeros and ties",
    "NaN",
    "infinities",
    "the least number everywhere",
)
# The share of a float type's range above which products and sums overflow, in an order that is open.
_LARGE = 0.25


@dataclass(frozen=True)
class EdgeSet:
    """Inputs by name. `what` describes them in messages. `finite` inputs have no NaN and no infinity."""

    what: str
    inputs: Mapping[str, Array]
    finite: bool


@dataclass(frozen=True)
class Difference:
    """A node's difference from ONNX Runtime. `is_open`: the standard leaves the result open."""

    text: str
    is_open: bool


def edge_sets(
    inputs: Sequence[TensorSpec],
    extents: Mapping[str, int],
    usual: Mapping[str, Array],
    divisors: Collection[str] = (),
) -> Iterator[EdgeSet]:
    """Yield inputs at the edges: copies of the `usual` inputs with some or all elements replaced.

    An input in `extents` holds indices below its number there. The `divisors` of integers are positive except
    in SMALL and ZERO_DIVISORS: a division of the least integer by -1 ends a process.
    """
    if divisors:
        zeros = {name: _with_values(usual[name], [0]) for name in divisors}
        yield EdgeSet(ZERO_DIVISORS, {**usual, **zeros}, finite=True)
        positive = {name: np.maximum(np.abs(usual[name]), 1).astype(usual[name].dtype) for name in divisors}
        yield from (
            edge if edge.what == SMALL else EdgeSet(edge.what, {**edge.inputs, **positive}, edge.finite)
            for edge in edge_sets(inputs, extents, usual)
        )
        return
    if any(_holds_numbers(spec, extents) for spec in inputs):
        yield EdgeSet(
            SMALL,
            {
                spec.name: _with_small(spec, usual[spec.name], _holds_numbers(spec, extents))
                for spec in inputs
            },
            finite=True,
        )
    yield EdgeSet(
        LIMITS,
        {spec.name: _with_limits(spec, usual[spec.name], extents.get(spec.name)) for spec in inputs},
        finite=True,
    )
    has_floats = any(map(_is_float, inputs))
    for what, specials in ((NAN, [np.nan]), (INFINITIES, [np.inf, -np.inf])) if has_floats else ():
        yield EdgeSet(
            what,
            {
                spec.name: _with_values(usual[spec.name], specials) if _is_float(spec) else usual[spec.name]
                for spec in inputs
            },
            finite=False,
        )
    # A maximum that starts with a number above the least is wrong if no element is larger.
    yield EdgeSet(
        LEAST,
        {spec.name: _with_least(spec, usual[spec.name], is_index=spec.name in extents) for spec in inputs},
        finite=not has_floats,
    )


def _is_float(spec: TensorSpec) -> bool:
    return "float" in spec.dtype


def _holds_numbers(spec: TensorSpec, extents: Mapping[str, int]) -> bool:
    """Return whether an input holds wide integers that aren't indices. The usual inputs draw only 0 and 1."""
    is_wide = spec.dtype.removeprefix("u") in ("int16", "int32", "int64")
    return is_wide and spec.name not in extents and "mask" not in spec.name.lower()


def _with_small(spec: TensorSpec, usual: Array, are_numbers: bool) -> Array:
    """Replace numbers with small ones that aren't zero: some of the usual ones are."""
    if not are_numbers:
        return usual
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, _SMALL, usual.shape, endpoint=True)
    signs = 1 if spec.dtype.startswith("u") else rng.choice([-1, 1], usual.shape)
    return (sizes * signs).astype(usual.dtype)


def _with_limits(spec: TensorSpec, usual: Array, extent: int | None) -> Array:
    dtype = numpy_dtype(spec.dtype)
    if extent is not None:
        return _with_values(usual, [0, extent - 1, *([-1, -extent] if dtype.kind == "i" else [])])
    if spec.dtype == "bool" or "mask" in spec.name.lower():
        return usual
    if _is_float(spec):
        limits = onnx_finfo(dtype)
        return _with_values(usual, [limits[1], -limits[1], 0.0, -0.0, limits[0], -limits[0], 1.0, 1.0])
    numbers = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return _with_values(usual, [numbers.min, numbers.max, 0, 1, 1])


def _with_least(spec: TensorSpec, usual: Array, is_index: bool) -> Array:
    """Replace all elements with the type's least number, but keep masks and set indices to 0."""
    if spec.dtype == "bool" or "mask" in spec.name.lower():
        return usual
    if is_index:
        return np.zeros_like(usual)
    if _is_float(spec):
        return np.full(usual.shape, -np.inf).astype(usual.dtype)
    limits = ml_dtypes.iinfo(numpy_dtype(spec.dtype))  # type: ignore[no-untyped-call]
    return np.full(usual.shape, limits.min).astype(usual.dtype)


def onnx_finfo(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the smallest normal and the greatest number of a type of floats."""
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(limits.smallest_normal), float(limits.max)


def _with_values(usual: Array, specials: Sequence[float]) -> Array:
    """Replace evenly spaced elements with special values."""
    result = usual.copy()
    flat = result.reshape(-1)
    count = min(len(specials), flat.size)
    places = np.arange(count) * max(flat.size // max(count, 1), 1)
    flat[places] = np.array(specials[:count]).astype(usual.dtype)
    return result


def compare_edges(wanted: Sequence[Array], found: Sequence[Array], computed_in: str) -> str:
    """Describe how outputs differ; "" if NaN and infinities are at the same positions, and other values
    agree."""
    for number, (right, own) in enumerate(zip(wanted, found, strict=True)):
        if (right.shape, right.dtype) != (own.shape, own.dtype):
            return compare_outputs([right], [own], computed_in)
        if _differ(right, own).any():
            at = tuple(int(k) for k in np.argwhere(_differ(right, own))[0])
            return f"output {number}: {own[at]} instead of {right[at]} at {list(at)}"
        numbers = _is_finite(right)
        if wrong := compare_outputs([right[numbers]], [own[numbers]], computed_in):
            return wrong.replace("output 0", f"output {number}")
    return ""


def _is_finite(array: Array) -> NDArray[np.bool_]:
    return np.ones(array.shape, bool) if _has_integers(array) else np.isfinite(array.astype(np.float64))


def _has_integers(array: Array) -> bool:
    """Return whether an array holds integers or booleans, also of the types that ml_dtypes adds."""
    return "float" not in str(array.dtype)


def _differ(right: Array, own: Array) -> NDArray[np.bool_]:
    """Return a mask of positions at which one value is NaN or infinite and the other isn't, or has the other
    sign."""
    if _has_integers(right):
        return np.zeros(right.shape, bool)
    a, b = right.astype(np.float64), own.astype(np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    return ~(both | (a == b) | (np.isnan(a) & np.isnan(b)))


def varying(file: OnnxFile) -> list[str]:
    """Return the names of the values that nodes of the graph compute from the inputs, without shapes."""
    found = {spec.name for spec in file.inputs}
    names = []
    for node in file.proto.graph.node:
        if node.op_type in ("Shape", "Size"):
            continue
        if found.intersection(node.input) or any(one.HasField("g") for one in node.attribute):
            fresh = [name for name in node.output if name]
            found.update(fresh)
            names += fresh
    return names


def can_be_given(array: Array) -> bool:
    """Return whether a value can be an input of a model that `split_at` returns."""
    return not array.dtype.hasobject and array.size > 0


def step_of(node: onnx.NodeProto) -> Step:
    """Return a node of an ONNX graph as a step."""
    label = f"operator {node.op_type} of {node_name(node)}"
    names = (tuple(filter(None, each)) for each in (node.input, node.output))
    return Step(frozenset({node.op_type}), label, *names)


def judge(
    step: Step,
    values: Mapping[str, Array],
    found: Mapping[str, Array],
    edge: EdgeSet,
    computed_in: str,
) -> Difference | None:
    """Return how a step's outputs differ; None if they agree up to rounding.

    `values` are the right ones of its inputs and outputs.
    """
    for name in step.outputs:
        if name not in found:
            continue
        right, own = values[name], found[name]
        if step.kinds & _BOUNDED and own.dtype.kind == "f":
            right, own = (
                np.clip(one, *np.finfo(own.dtype).max * np.array([-1, 1], own.dtype)) for one in (right, own)
            )
        wrong = compare_edges([right], [own], computed_in).removeprefix("output 0: ")
        inputs = [values[one] for one in step.inputs if one in values]
        if not wrong or (edge.finite and _overflows(right, inputs)):
            continue
        if step.kinds & _SPREADING and _differs_in_specials_only(right, own):
            continue
        if step.kinds & _CANCELLING and edge.what != NAN and _differ_beyond_range(right, own):
            continue
        text = f"for {edge.what}, {step.label} computes '{name}' otherwise ({wrong})"
        is_between = bool(step.kinds & _INTERPOLATING) and not edge.finite and _agree_where_finite(right, own)
        return Difference(text, is_between or _is_open(step.kinds, inputs, right))
    return None


def _is_open(kinds: frozenset[str], inputs: Sequence[Array], right: Array) -> bool:
    if all(map(_has_integers, inputs)):
        return _is_open_for_integers(kinds, inputs)
    if kinds & _POWERS and right.dtype.kind in "iu" and len(inputs) == 2:
        return _is_no_integer((inputs[0], inputs[1]), right)
    if not _has_integers(right) or right.dtype.kind == "b":
        kinds = kinds - _CASTS
    return bool(kinds & UNDEFINED_FOR_SPECIAL_VALUES)


def _is_open_for_integers(kinds: frozenset[str], inputs: Sequence[Array]) -> bool:
    """Return whether integers are divided by zero, shifted by too much, or may overflow."""
    if not kinds & (_DIVISIONS | _SHIFTS | _POWERS) or len(inputs) < 2:
        return bool(kinds & UNDEFINED_FOR_INTEGERS) and not (
            kinds & _SUMS and all(map(_cannot_overflow, inputs))
        )
    data, other = inputs[:2]
    limits = np.iinfo(data.dtype)
    if kinds & _DIVISIONS:
        is_overflow = limits.min < 0 and (other == -1).any() and (data == limits.min).any()
        return bool((other == 0).any() or is_overflow)
    if kinds & _SHIFTS:
        return bool((other < 0).any() or (other >= limits.bits).any())
    largest = max(abs(int(data.min(initial=0))), abs(int(data.max(initial=0))))
    exponent = int(other.max(initial=0))
    return bool((other < 0).any()) or exponent > limits.bits or largest**exponent > limits.max


def _cannot_overflow(array: Array) -> bool:
    return bool((array <= _SMALL).all() and (array >= -_SMALL).all())


def _is_no_integer(power: tuple[Array, Array], right: Array) -> bool:
    """Return whether a power of an integer by a float is NaN, or larger than the integer type allows."""
    base, exponent = (one.astype(np.float64) for one in power)
    with np.errstate(all="ignore"):
        exact = np.abs(np.power(base, exponent))
    return not bool((exact < np.iinfo(right.dtype).max).all())


def _differ_beyond_range(right: Array, own: Array) -> bool:
    """Return whether values differ only where neither is finite."""
    if right.shape != own.shape or right.dtype != own.dtype or _has_integers(right):
        return False
    numbers = _is_finite(right) | _is_finite(own)
    return not compare_edges([right[numbers]], [own[numbers]], str(right.dtype))


def _agree_where_finite(right: Array, own: Array) -> bool:
    """Return whether the values agree where both are finite."""
    if right.shape != own.shape or right.dtype != own.dtype:
        return False
    both = _is_finite(right) & _is_finite(own)
    return not compare_outputs([right[both]], [own[both]], str(right.dtype))


def _differs_in_specials_only(right: Array, own: Array) -> bool:
    """Return whether all differing values are NaN or infinite."""
    if right.shape != own.shape or right.dtype != own.dtype or _has_integers(right):
        return False
    numbers = _is_finite(own)
    return bool(_is_finite(right)[numbers].all()) and not compare_outputs(
        [right[numbers]], [own[numbers]], str(right.dtype)
    )


def _overflows(right: Array, inputs: Sequence[Array]) -> bool:
    """Return whether products and sums of these inputs may overflow or lose all digits, depending on the
    order of steps."""
    if _has_integers(right):
        return False
    most = onnx_finfo(right.dtype)[1] * _LARGE
    # There may be NaN beside large numbers, if an earlier step overflowed.
    wide = [np.abs(array.astype(np.float64)) for array in inputs]
    sizes = [float(np.max(size, where=~np.isnan(size), initial=0)) for size in wide]
    return max(sizes, default=0.0) > np.sqrt(most)


def is_open_at_edge(
    kinds: frozenset[str], edge: EdgeSet, wanted: Sequence[Array], found: Sequence[Array]
) -> bool:
    """Return whether the standard may leave a difference of outputs at an edge open, if nodes can't be
    compared one by one.

    A tuned kernel may spread NaN further, and overflow earlier; it must not lose NaN or an infinity.
    """
    for right, own in zip(wanted, found, strict=True):
        if right.shape != own.shape or right.dtype != own.dtype:
            return False
        if _has_integers(right):
            if (right != own).any() and not kinds & (UNDEFINED_FOR_SPECIAL_VALUES | UNDEFINED_FOR_INTEGERS):
                return False
            continue
        if not edge.finite and not _differs_in_specials_only(right, own):
            return False
    return True
