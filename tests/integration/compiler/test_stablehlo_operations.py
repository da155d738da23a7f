"""Imported StableHLO operations agree with JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.importing.formats.stablehlo_model import read
from compiler.measuring.outputs import compare_outputs
from compiler.verifying.imported import Imported
from compiler.verifying.inputs import drawn
from tests.devices import UNOPTIMIZED as TARGET
from tests.marks import slow_lane_except
from tests.stablehlo_models import exported, exported_text

jnp, lax, nn = jax.numpy, jax.lax, jax.nn

Array = NDArray[Any]


def check(function: Callable[..., Any], *inputs: Array, export: Callable[..., bytes] = exported) -> None:
    """Compare an imported function with JAX, and with XLA's result for the file."""
    file = read(export(function, *inputs), {})
    model = file.to_relax()
    by_name = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    found = list(Imported(model, TARGET).compute(by_name).values())
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*inputs))]
    for number, (expected, actual) in enumerate(zip(wanted, found, strict=True)):
        wrong = compare_outputs([expected], [actual], model.computed_in)
        assert not wrong, f"{file.inputs}, output {number}: {wrong}"
        if "float" in str(expected.dtype) and model.computed_in == "float32":
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert compare_outputs(wanted, file.compute(by_name), model.computed_in) == ""


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def ints(*shape: int, low: int = -9, high: int = 9, dtype: str = "int32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


NUMBERS = np.array([-3.5, -2.5, -1.5, -0.5, -0.0, 0.0, 1e-4, 0.5, 1.0, 1.5, 2.5, 7.25], np.float32)
# Of one number, wherever it is.
EVERYWHERE: Sequence[Callable[[Any], Any]] = (
    *(jnp.abs, jnp.negative, jnp.exp, jnp.expm1, lax.logistic, jnp.tanh, jnp.floor, jnp.ceil, jnp.sign),
    *(jnp.sin, jnp.cos, jnp.tan, jnp.isfinite, jnp.cbrt, jnp.round, jnp.square, lax.erf, lax.erfc),
    *(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.sinh, jnp.cosh, jnp.asinh, jnp.atan),
    *(nn.relu, nn.gelu, nn.softplus, nn.silu, nn.elu, nn.leaky_relu, nn.hard_swish, lambda x: x**3),
    *(lambda x: nn.gelu(x, approximate=False), lambda x: jnp.clip(x, -1, 1.5), lambda x: x > 0.2),
    *(lambda x: lax.bitcast_convert_type(x, jnp.int32), lambda x: x.astype("int32"), jnp.isnan, jnp.isinf),
)
WHERE_POSITIVE: Sequence[Callable[[Any], Any]] = (
    *(jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, lambda x: x**0.3, lambda x: x**x),
)


@pytest.mark.slow
@pytest.mark.parametrize("export", slow_lane_except([exported, exported_text], exported, seconds=0.5))
def test_elementwise_operations_of_floats_agree_with_xla(export: Callable[..., bytes]) -> None:
    """Text that isn't exported has operations of a higher level."""
    constant = jnp.asarray(NUMBERS)

    def of_all(x: Any) -> Any:
        positive = jnp.abs(x) + 0.1
        return [each(x) for each in EVERYWHERE] + [each(positive) for each in WHERE_POSITIVE]

    check(lambda x: of_all(x) + of_all(constant), NUMBERS, export=export)


def test_operations_of_two_floats_agree_with_xla() -> None:
    x, y = random(3, 8), random(3, 8, seed=1)
    functions = (
        *(jnp.add, jnp.subtract, jnp.multiply, jnp.divide, jnp.maximum, jnp.minimum, jnp.fmod, jnp.arctan2),
        *(jnp.equal, jnp.not_equal, jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal),
    )
    check(lambda x, y: [each(x, y) for each in functions] + [jnp.where(x > y, x, 2 * y)], x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", slow_lane_except(["int8", "int32", "int64", "uint8", "uint32"], "int8", "uint32", seconds=0.5)
)
def test_operations_of_integers_agree_with_xla(dtype: str) -> None:
    signed = not dtype.startswith("u")
    x, y = (ints(5, 7, low=-9 if signed else 0, dtype=dtype, seed=seed) for seed in range(2))
    y = np.where(y == 0, 1, y).astype(dtype)
    functions = (
        *(lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or),
        *(lax.bitwise_xor, lax.eq, lax.lt, lambda x, y: x // y, lambda x, y: x % y, lambda x, _: ~x),
        *(lambda x, _: lax.shift_left(x, x.dtype.type(2)), lambda x, _: x.astype("float32")),
        *(lambda x, _: x.astype(bool), lambda x, _: lax.shift_right_arithmetic(x, x.dtype.type(1))),
        *(
            lambda x, _: lax.shift_right_logical(x, x.dtype.type(1)),
            lambda x, y: lax.shift_right_logical(x, x * 0 + 2),
        ),
        *(lambda x, _: jnp.sum(x, 1), lambda x, _: jnp.max(x, 0), lambda x, _: jnp.cumsum(x, 1)),
    )
    constant = y[:1]
    with jax.enable_x64():
        check(
            lambda x, y: (
                [each(x, y) for each in functions] + [each(constant, constant) for each in functions]
            ),
            x,
            y,
        )


def test_operations_of_booleans_agree_with_xla() -> None:
    x, y = random(4, 6) > 0, random(4, 6, seed=1) > 0
    functions = (
        *(jnp.logical_and, jnp.logical_or, jnp.logical_xor, lambda x, _: ~x, jnp.equal, jnp.less),
        *(jnp.maximum, jnp.minimum, lambda x, _: jnp.any(x, 1), lambda x, _: jnp.all(x, 0)),
        *(lambda x, _: x.astype("float32"), lambda x, y: jnp.where(x, y, x)),
    )
    check(lambda x, y: [each(x, y) for each in functions], x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_float_types_agree_with_xla(dtype: str) -> None:
    with jax.enable_x64():
        x = np.asarray(jnp.asarray(random(4, 130), dtype))
        weight = jnp.asarray(random(130, 5, seed=1), dtype)
        check(lambda x: [nn.softmax(x @ weight), x.astype("float32") + 1, jnp.max(x, 1) * 3], x)


MOVES: Mapping[str, Callable[[Any], Any]] = {
    "broadcast": lambda x: [jnp.broadcast_to(x[:, :1], (2, 3, 8, 4)), x + x[0, 0], x.T + x[0, :, 0][:, None]],
    "broadcast to other axes": lambda x: lax.broadcast_in_dim(x[0], (8, 2, 4), (0, 2)),
    "reshape": lambda x: [x.reshape(4, -1), x[:, None], x.ravel(), jnp.ones((2, 3)).reshape(6) + x[0, 0, 0]],
    "transpose": lambda x: [jnp.transpose(x, (2, 0, 1)), jnp.swapaxes(x[:, :1], 0, 1)],
    "slice": lambda x: [x[1:, 2:7:2], x[:, ::-1], x[..., -1], x[:, 1:1].sum(1)],
    "concatenate": lambda x: jnp.concatenate([x, jnp.zeros((3, 2, 4)), x[:, :1]], 1),
    "stack": lambda x: jnp.stack([x, x + 1], 1),
    "pad": lambda x: [
        jnp.pad(x, ((1, 2), (0, 0), (3, 0))),
        lax.pad(x, 0.5, [(1, 0, 2), (-2, 1, 0), (0, 0, 1)]),
    ],
    "pad with what is computed": lambda x: lax.pad(x, x[0, 0, 0], [(1, 0, 0), (0, 1, 0), (0, 0, 0)]),
    "reflect": lambda x: jnp.pad(x, ((1, 1), (2, 2), (0, 0)), mode="reflect"),
    "iota": lambda x: [x + jnp.arange(4), jnp.arange(8.0)[None, :, None] * x, jnp.eye(8) @ x],
    "roll": lambda x: jnp.roll(x, 3, axis=1),
    "tile": lambda x: [jnp.tile(x, (1, 2, 1)), jnp.repeat(x, 2, axis=0)],
    "triangle": lambda x: jnp.tril(x),
    "reductions": lambda x: [x.sum((0, 2)), x.mean(), x.max(1), x.min((1, 2)), x.prod(2), x.var(1)],
    "norms": lambda x: [
        nn.logsumexp(x, 1),
        nn.log_softmax(x, -1),
        nn.standardize(x),
        jnp.linalg.norm(x, axis=1),
    ],
    "with an initial value": lambda x: lax.reduce(x, 2.0, lax.add, (1,)),
    "places": lambda x: [jnp.argmax(x, 1), jnp.argmin(x, 2), jnp.argmax(x[0].astype("int32") // 2, 0)],
    "sort": lambda x: [jnp.sort(x, 1), jnp.argsort(x, -1), jnp.sort(x, 1, descending=True)],
    "top k": lambda x: lax.top_k(x, 3),
    "running sum": lambda x: [
        jnp.cumsum(x, 1),
        lax.cumsum(x, 2, reverse=True),
        jnp.cumprod(x, 1),
        lax.cummax(x, 1),
    ],
    "one hot": lambda x: nn.one_hot(jnp.argmax(x, 1), 8),
}


@pytest.mark.parametrize(
    "name", slow_lane_except(MOVES, "reshape", "slice", "reductions", "places", seconds=0.5)
)
def test_shape_operations_and_reductions_agree_with_xla(name: str) -> None:
    check(MOVES[name], random(3, 8, 4))


AT = np.array([[3, 0, 5], [2, 7, 7]], np.int32)
GATHERS: Mapping[str, Callable[[Any, Any], Any]] = {
    "of the first axis": lambda x, at: x[at],
    "of another axis": lambda x, at: [jnp.take(x, at, axis=1), x[:, at[0]]],
    "clipped": lambda x, at: jnp.take(x, at * 3 - 4, axis=0, mode="clip"),
    "filled": lambda x, at: jnp.take(x, at * 3, axis=0, mode="fill", fill_value=0),
    "of two axes": lambda x, at: [x[at, at // 2], x[at // 2, :, at // 3]],
    "along an axis": lambda x, at: jnp.take_along_axis(x[:2], at[:, :, None], axis=1),
    "for each of a batch": lambda x, at: jax.vmap(lambda row, k: row[k])(x[:2], at),
    "of known places": lambda x, at: [x[np.array([1, 3])], x[:, np.array([[0], [2]]), 1], x[at[0, 0], 2:4]],
    "a window": lambda x, at: [
        lax.dynamic_slice(x, (at[0, 0], 2, at[1, 0]), (3, 4, 2)),
        lax.dynamic_slice_in_dim(x, at[1, 1], 3, 1),
        lax.dynamic_slice(x, (1, at[0, 0], 0), (3, 5, 5)),
    ],
    "a window written": lambda x, at: [
        lax.dynamic_update_slice(x, x[:2, :3] * 2, (at[0, 0], at[0, 1], 0)),
        lax.dynamic_update_slice(x, x[:2] * 2, (4, 0, 0)),
        lax.dynamic_update_slice(x, x[:2, :2] * 2, (4, 1, 0)),
    ],
    "written": lambda x, at: [x.at[at[0]].set(1.0), x.at[:, 2].set(x[:, 3]), x.at[1, at[0]].set(0.5)],
    "added": lambda x, at: [x.at[at].add(1.0), x.at[:, at[1]].add(x[:, :3]), x.at[at[0], at[1]].multiply(3)],
    "compared": lambda x, at: [x.at[at].max(0.1), x.at[at[0], :, at[1] % 4].min(-0.2)],
    "written outside": lambda x, at: x.at[at * 2].set(4.0, mode="drop"),
}


@pytest.mark.parametrize(
    "name", slow_lane_except(GATHERS, "of the first axis", "a window", "written", seconds=0.5)
)
def test_gathers_and_scatters_agree_with_xla(name: str) -> None:
    check(GATHERS[name], random(8, 9, 5), AT)


PRODUCTS: Mapping[str, tuple[str, Sequence[tuple[int, ...]]]] = {
    "matrices": ("ik,kj->ij", [(3, 5), (5, 4)]),
    "vectors": ("i,i->", [(5,), (5,)]),
    "a matrix and a vector": ("ij,j->i", [(3, 5), (5,)]),
    "a vector and a matrix": ("j,ij->i", [(5,), (3, 5)]),
    "many rows": ("abk,kj->abj", [(2, 3, 5), (5, 4)]),
    "heads": ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    "of heads": ("bhqk,bkhd->bqhd", [(2, 4, 3, 6), (2, 6, 4, 5)]),
    "two depths": ("abcd,cde->abe", [(2, 3, 4, 5), (4, 5, 6)]),
    "to heads": ("btd,dhk->bthk", [(2, 3, 6), (6, 2, 4)]),
    "outer": ("i,j->ij", [(3,), (4,)]),
    "rows by batch": ("bi,bi->b", [(3, 5), (3, 5)]),
}


@pytest.mark.parametrize("name", slow_lane_except(PRODUCTS, "heads", "many rows", seconds=0.5))
def test_products_agree_with_xla(name: str) -> None:
    terms, shapes = PRODUCTS[name]
    x, y = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    a, b = x, y
    check(lambda x, y: [jnp.einsum(terms, *each) for each in ((x, y), (x, b), (a, y))], x, y)


def test_products_of_bytes_agree_with_xla() -> None:
    x, y = ints(3, 8, dtype="int8"), ints(8, 5, dtype="int8", seed=1)
    check(lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32), x, y)


def convolve(numbers: tuple[str, str, str], **options: Any) -> Callable[..., Any]:
    options = {"window_strides": (1, 1), "padding": "SAME"} | options
    return lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=numbers, **options)


LAST = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS: Mapping[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "channels last": (convolve(LAST), (2, 7, 6, 4), (3, 3, 4, 5)),
    "channels first": (convolve(("NCHW", "OIHW", "NCHW")), (2, 4, 7, 6), (5, 4, 3, 3)),
    "of mixed layouts": (convolve(("CNHW", "WOHI", "HWNC")), (4, 2, 7, 6), (3, 5, 3, 4)),
    "with strides": (convolve(LAST, window_strides=(2, 1), padding="VALID"), (1, 7, 6, 4), (3, 2, 4, 5)),
    "with padding": (convolve(LAST, padding=((2, 0), (-1, 3))), (1, 7, 6, 4), (3, 3, 4, 5)),
    "dilated": (convolve(LAST, rhs_dilation=(2, 1)), (1, 9, 6, 4), (3, 3, 4, 5)),
    "grouped": (convolve(LAST, feature_group_count=2), (1, 7, 6, 4), (3, 3, 2, 6)),
    "by channels": (convolve(LAST, feature_group_count=4), (1, 7, 6, 4), (3, 3, 1, 8)),
    "along one axis": (
        convolve(("NWC", "WIO", "NWC"), window_strides=(2,), padding="SAME"),
        (2, 9, 4),
        (3, 4, 5),
    ),
    "along three axes": (
        convolve(("NDHWC", "DHWIO", "NDHWC"), window_strides=(1, 2, 1)),
        (1, 4, 5, 6, 2),
        (2, 3, 3, 2, 3),
    ),
    "transposed": (
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=LAST),
        (1, 5, 4, 3),
        (3, 3, 3, 2),
    ),
    "transposed, of a wide kernel": (
        lambda x, w: lax.conv_transpose(x, w, (2, 3), "VALID", dimension_numbers=LAST),
        (1, 5, 4, 3),
        (4, 4, 3, 2),
    ),
    "transposed, of groups": (
        convolve(LAST, lhs_dilation=(2, 2), padding=((1, 2), (2, 1)), feature_group_count=3),
        (1, 5, 4, 3),
        (3, 3, 1, 6),
    ),
    "transposed, dilated": (
        convolve(LAST, lhs_dilation=(2, 1), rhs_dilation=(1, 2), padding=((1, 1), (2, 2))),
        (1, 5, 4, 3),
        (3, 3, 3, 2),
    ),
    "transposed, cut": (
        convolve(LAST, lhs_dilation=(2, 2), padding=((-1, 0), (4, 2))),
        (1, 5, 4, 3),
        (3, 3, 3, 2),
    ),
}


@pytest.mark.parametrize("name", slow_lane_except(CONVOLUTIONS, "channels last", "transposed", seconds=0.5))
def test_convolutions_agree_with_xla(name: str) -> None:
    function, shape, kernel = CONVOLUTIONS[name]
    w = random(*kernel, seed=1)
    constant = w
    check(lambda x, w: [function(x, w), function(x, constant)], random(*shape), w)


def window(
    fold: Callable[..., Any], start: float, sizes: tuple[int, ...], **options: Any
) -> Callable[..., Any]:
    given = {"window_strides": sizes, "padding": "VALID"} | options
    return lambda x: lax.reduce_window(x, start, fold, sizes, **given)


def average_without_padding(x: Any) -> Any:
    sizes, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    total = lax.reduce_window(x, 0.0, lax.add, sizes, strides, "SAME")
    return total / lax.reduce_window(jnp.ones(x.shape), 0.0, lax.add, sizes, strides, "SAME")


def gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient of pooling, for a gradient of its result that differs by element."""

    def computed(x: Any) -> Any:
        pooled, pull = jax.vjp(function, x)
        return pull(jnp.arange(1.0, pooled.size + 1).reshape(pooled.shape))[0]

    return computed


def of_ties(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(jnp.round(x))


overlapping = window(
    lax.max, -np.inf, (1, 3, 2, 1), window_strides=(1, 2, 1, 1), padding=((0, 0), (2, 1), (0, 1), (0, 0))
)
WINDOWS: Mapping[str, Callable[..., Any]] = {
    "gradient of the largest": gradient(window(lax.max, -np.inf, (1, 2, 2, 1))),
    "gradient of the smallest, overlapping": gradient(
        window(lax.min, np.inf, (1, 3, 3, 1), window_strides=(1, 1, 2, 1), padding="SAME")
    ),
    "gradient of the first of equal ones": of_ties(gradient(overlapping)),
    "gradient with rows between the windows": gradient(
        window(lax.max, -np.inf, (1, 2, 2, 2), window_strides=(1, 3, 4, 1))
    ),
    "largest": window(lax.max, -np.inf, (1, 2, 2, 1)),
    "largest, overlapping": window(
        lax.max, -np.inf, (1, 3, 3, 1), window_strides=(1, 2, 1, 1), padding=((0, 0), (1, 1), (0, 1), (0, 0))
    ),
    "smallest": window(lax.min, np.inf, (1, 2, 3, 1)),
    "sum": window(lax.add, 0.0, (1, 2, 2, 1), padding="SAME"),
    "mean without padding": average_without_padding,
    "channels first": window(lax.max, -np.inf, (1, 1, 2, 2)),
    "of other axes": window(lax.add, 0.0, (2, 1, 1, 3)),
    "of one axis": window(lax.max, -np.inf, (1, 1, 5, 1), window_strides=(1, 1, 1, 1)),
    "dilated": window(
        lax.max, -np.inf, (1, 2, 2, 1), window_dilation=(1, 2, 2, 1), window_strides=(1, 1, 1, 1)
    ),
    "of all": window(lax.add, 0.0, (1, 6, 9, 1)),
}


@pytest.mark.parametrize(
    "name", slow_lane_except(WINDOWS, "largest", "gradient of the first of equal ones", seconds=0.5)
)
def test_windows_agree_with_xla(name: str) -> None:
    check(WINDOWS[name], random(2, 6, 9, 4))


OTHERS: Mapping[str, tuple[str, str]] = {
    "batch norm": (
        "tensor<2x3x3x4xf32>",
        """%v = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
      %y = "stablehlo.batch_norm_inference"(%x, %v, %v, %v, %v)
        {epsilon = 0.5 : f32, feature_index = 3 : i64} : (tensor<2x3x3x4xf32>, tensor<4xf32>,
        tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<2x3x3x4xf32>""",
    ),
    "batch norm of a batch": (
        "tensor<2x3x3x4xf32>",
        """%v = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
      %y, %mean, %variance = "stablehlo.batch_norm_training"(%x, %v, %v)
        {epsilon = 0.5 : f32, feature_index = 3 : i64} : (tensor<2x3x3x4xf32>, tensor<4xf32>, tensor<4xf32>)
        -> (tensor<2x3x3x4xf32>, tensor<4xf32>, tensor<4xf32>)""",
    ),
    "shapes as constants": (
        "tensor<4x2xf32>",
        """%s = stablehlo.constant dense<[4, 2]> : tensor<2xi64>
      %z = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
      %a = stablehlo.dynamic_broadcast_in_dim %z, %s, dims = [1]
        : (tensor<2xf32>, tensor<2xi64>) -> tensor<4x2xf32>
      %b = stablehlo.dynamic_iota %s, dim = 0 : (tensor<2xi64>) -> tensor<4x2xf32>
      %c = stablehlo.dynamic_reshape %x, %s : (tensor<4x2xf32>, tensor<2xi64>) -> tensor<4x2xf32>
      %d = stablehlo.multiply %a, %b : tensor<4x2xf32>
      %y = stablehlo.add %c, %d : tensor<4x2xf32>""",
    ),
    "dot": (
        "tensor<4x4xf32>",
        "%y = stablehlo.dot %x, %x : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>",
    ),
    "broadcast": (
        "tensor<4x2xf32>",
        """%z = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
      %b = stablehlo.broadcast %z, sizes = [4] : (tensor<2xf32>) -> tensor<4x2xf32>
      %y = stablehlo.add %x, %b : tensor<4x2xf32>""",
    ),
    "if": (
        "tensor<4xf32>",
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
        : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      %p = stablehlo.compare GT, %s, %z : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %y = "stablehlo.if"(%p) ({
        %a = stablehlo.negate %x : tensor<4xf32>
        stablehlo.return %a : tensor<4xf32>
      }, {
        stablehlo.return %x : tensor<4xf32>
      }) : (tensor<i1>) -> tensor<4xf32>""",
    ),
    "erf as a call": (
        "tensor<4xf32>",
        "%y = stablehlo.custom_call @mhlo.erf(%x) {mhlo.attributes = {}, mhlo.version = 1 : i64}"
        " : (tensor<4xf32>) -> tensor<4xf32>",
    ),
    "numbers of 16 bits": (
        "tensor<4xbf16>",
        """%c = stablehlo.constant dense<[1.5, -2.0, 0.25, 0xFF80]> : tensor<4xbf16>
      %y = stablehlo.multiply %x, %c : tensor<4xbf16>""",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_operations_without_a_jax_function_agree_with_xla(name: str) -> None:
    kind, body = OTHERS[name]
    text = f"func.func @main(%x: {kind}) -> {kind} {{\n{body}\nreturn %y : {kind}\n}}"
    file = read(text.encode(), {})
    model = file.to_relax()
    for inputs in drawn(file.inputs, {}):
        found = list(Imported(model, TARGET).compute(inputs).values())
        assert compare_outputs(file.compute(inputs), found, model.computed_in) == ""


@pytest.mark.parametrize(
    "method", slow_lane_except(["nearest", "linear", "cubic", "lanczos3"], "nearest", seconds=0.5)
)
@pytest.mark.parametrize("shape", [(1, 10, 14, 3), (1, 3, 4, 3)])
def test_images_are_resized(method: str, shape: tuple[int, ...]) -> None:
    check(lambda x: jax.image.resize(x, shape, method), random(1, 5, 7, 3))


LOOPS: Mapping[str, Callable[[Any], Any]] = {
    "scan": lambda x: lax.scan(lambda c, row: (c * 0.5 + row, jnp.tanh(c)), jnp.zeros(4), x),
    "scan backwards": lambda x: lax.scan(lambda c, row: (c + row, c.sum()), jnp.zeros(4), x, reverse=True),
    "count": lambda x: lax.fori_loop(0, 5, lambda k, c: c * 0.9 + x[k], x[0]),
    "while": lambda x: lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, c[1] * 1.1), (0, x))[1],
    "map": lambda x: lax.map(lambda row: jnp.outer(row, row), x),
    "associative": lambda x: lax.associative_scan(jnp.multiply, x),
    "branches": lambda x: [
        lax.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x * 2, x),
        lax.switch(x[0, 1].astype("int32") + 1, [jnp.sin, jnp.cos, jnp.tanh], x),
        lax.switch(1, [jnp.sin, jnp.cos], x),
    ],
    "checkpoints": lambda x: jax.checkpoint(lambda x: jnp.sin(x) + 1)(x),
}


@pytest.mark.parametrize("name", slow_lane_except(LOOPS, "scan", "branches", seconds=0.5))
def test_control_flow_agrees_with_xla(name: str) -> None:
    check(LOOPS[name], random(6, 4))
