"""StableHLO programs agree with XLA on NaN, infinities, extremes, and numbers out of range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.importing.formats.stablehlo_model import StablehloModel, read
from compiler.importing.spec import ModelError
from compiler.verifying.imported import Imported
from tests.devices import UNOPTIMIZED as TARGET
from tests.stablehlo_models import exported

jnp, lax = jax.numpy, jax.lax

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")
EDGES = np.array(
    [
        NAN,
        INF,
        -INF,
        0.0,
        -0.0,
        0.49999997,
        -0.49999997,
        0.5,
        -2.5,
        127.5,
        -128.9,
        300.0,
        3e9,
        -3e9,
        8388609.0,
    ],
    np.float32,
)


@pytest.fixture(autouse=True)
def wide_types() -> Any:
    with jax.enable_x64(True):
        yield


def check(function: Callable[..., Any], *inputs: Array) -> None:
    """Compare an imported function with XLA, element by element; NaN equals NaN."""
    file = read(exported(function, *inputs), {})
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    found = list(Imported(file.to_relax(), TARGET, TARGET).compute(given).values())
    wanted = file.compute(given)
    assert len(wanted) == len(found)
    for expected, actual in zip(wanted, found, strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(actual, expected)


def check_all(functions: Mapping[str, Callable[..., Any]], *inputs: Array) -> None:
    """Compare functions with XLA as one program, and name the one that differs."""
    file = read(
        exported(lambda *given: {name: each(*given) for name, each in functions.items()}, *inputs), {}
    )
    check_file(file, inputs)


def check_file(file: StablehloModel, inputs: Sequence[Array]) -> None:
    given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
    found = Imported(file.to_relax(), TARGET, TARGET).compute(given)
    for expected, (name, actual) in zip(file.compute(given), found.items(), strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
        tolerance = 0.01 if str(expected.dtype) in ("float16", "bfloat16") else 1e-5
        if actual.dtype.kind in "fV":
            actual, expected = actual.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, err_msg=name)


def pairs(dtype: str) -> tuple[Array, Array]:
    """Return every pair of some integers, the least and the greatest among them."""
    bounds = np.iinfo(dtype)
    some = [bounds.min, bounds.min + 1, 0, 1, 7, 8, 31, 64, bounds.max]
    numbers = np.array([*some, *([-1, -7, -8] if bounds.min else [])]).astype(dtype)
    first, second = np.meshgrid(numbers, numbers)
    return first.ravel(), second.ravel()


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_quotients_and_shifts_of_extreme_integers_agree_with_xla(dtype: str) -> None:
    """x86 stops a process that divides by zero, and takes distances modulo the number of bits."""
    operators = (lax.div, lax.rem, lax.shift_left, lax.shift_right_arithmetic, lax.shift_right_logical)
    first, second = pairs(dtype)
    check(lambda x, y: [operator(x, y) for operator in operators], first, second)


def test_constants_are_divided_and_shifted_as_data_is() -> None:
    """XLA itself crashes where it folds the least integer divided by -1."""
    operators = (lax.div, lax.rem, lax.shift_left, lax.shift_right_arithmetic, lax.shift_right_logical)
    numbers = pairs("int32")

    def imported(function: Callable[..., Any], *inputs: Array) -> list[Array]:
        file = read(exported(function, *inputs), {})
        given = {spec.name: array for spec, array in zip(file.inputs, inputs, strict=True)}
        return list(Imported(file.to_relax(), TARGET, TARGET).compute(given).values())

    of_data = imported(lambda x, y: [operator(x, y) for operator in operators], *numbers)
    zeros = np.zeros(numbers[0].shape, np.int32)
    of_constants = imported(
        lambda z: [z + operator(*map(jnp.asarray, numbers)) for operator in operators], zeros
    )
    np.testing.assert_array_equal(of_constants, of_data)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("source", ["float32", "float16", "float64"])
def test_floats_out_of_range_become_the_nearest_integer(source: str, dtype: str) -> None:
    with np.errstate(over="ignore"):
        check(lambda x: lax.convert_element_type(x, dtype), EDGES.astype(source))


def test_halves_are_rounded_away_from_zero() -> None:
    check(lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), EDGES)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "uint8", "uint32", "uint64", "int16"])
def test_sorting_puts_nan_last(dtype: str) -> None:
    numbers = np.array([3, 1, NAN, -0.0, 0.0, INF, -INF, 2, 1], np.float32)
    data = numbers.astype(dtype) if "float" in dtype else np.array([3, np.iinfo(dtype).max, 0, 1], dtype)
    check(lambda x: [jnp.sort(x), jnp.argsort(x), jnp.argsort(x, descending=True)], data)


def test_nan_is_the_largest_of_all() -> None:
    check(lambda x: lax.top_k(x, 3), np.array([3, NAN, 1, INF, 3, -INF], np.float32))


def test_zero_times_infinity_is_nan() -> None:
    check(lambda x: [x * 0, 0 * x, 0 / x, x[:2, None] * jnp.zeros((1, 1), "float32")], EDGES)


def test_nan_is_not_equal_to_any_value() -> None:
    functions = [
        jnp.isnan,
        jnp.nan_to_num,
        lambda x: x == x,
        lambda x: x != x[::-1],
        lambda x: x.astype(bool),
    ]
    check(lambda x: [function(x) for function in functions], EDGES)


def test_the_maximum_of_no_elements_is_the_initial_value() -> None:
    check(lambda x: jnp.max(x, axis=1, initial=-5) + jnp.zeros(3, "float32"), np.zeros((3, 0), np.float32))


def test_products_of_booleans_agree_with_xla() -> None:
    check(lax.dot, np.array([[0, 1], [0, 0]], bool), np.array([[1, 0], [1, 0]], bool))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_halves_in_windows_are_rounded_once(dtype: Any) -> None:
    """4096 times 15 is right only if no sum on the way is rounded."""
    data = np.full((1, 64, 64, 1), 15, dtype)
    file = read(
        exported(
            lambda x: lax.reduce_window(x, dtype(0), lax.add, (1, 64, 64, 1), (1, 1, 1, 1), "VALID"), data
        ),
        {},
    )
    (found,) = Imported(file.to_relax(), TARGET, TARGET).compute({file.inputs[0].name: data}).values()
    assert float(found.reshape(())) == pytest.approx(64 * 64 * 15, rel=0.01)


BYTES = np.array([[-128, 5, 127, -3], [0, -128, 7, 1], [3, 4, -5, 6]], np.int8)


def windows(fold: Callable[..., Any], start: Any, **attributes: Any) -> Callable[[Any], Any]:
    def reduced(x: Any) -> Any:
        given = {"window_dimensions": (2, 3), "window_strides": (1, 2), "padding": "SAME", **attributes}
        return lax.reduce_window(x.astype(np.asarray(start).dtype), start, fold, **given)

    return reduced


def test_reductions_over_windows_agree_with_xla() -> None:
    """Negated, the least integer is itself: a minimum is no negated maximum."""
    least, largest = np.int8(-128), np.int8(127)
    check_all(
        {
            "minimum": windows(lax.min, largest),
            "minimum of uint8": windows(lax.min, np.uint8(255)),
            "maximum": windows(lax.max, least),
            "sum": windows(lax.add, np.int8(0)),
            "product": windows(lax.mul, np.int32(1), padding="VALID"),
            "product of floats": windows(lax.mul, np.float32(1)),
            "more than the minimum": windows(lax.min, np.int8(2)),
            "more than the sum": windows(lax.add, np.float32(0.5)),
            "negative padding": windows(lax.add, np.int32(0), padding=((-1, 0), (2, -1))),
            "gaps": windows(lax.max, least, base_dilation=(2, 3), padding=((1, 0), (0, 2))),
            "gaps in both": windows(lax.min, largest, base_dilation=(1, 2), window_dilation=(2, 1)),
            "any": lambda x: windows(lax.bitwise_or, np.bool_(False))(x > 4),
            "all": lambda x: windows(lax.bitwise_and, np.bool_(True))(x < 7),
            "bits": windows(lax.bitwise_xor, np.int8(0)),
            "five": windows(lax.min, largest, window_dimensions=(3, 4), window_strides=(1, 1)),
        },
        BYTES,
    )


def test_bitwise_reductions_and_indices_of_booleans_agree_with_xla() -> None:
    check_all(
        {
            "and": lambda x: lax.reduce(x, np.int8(-1), lax.bitwise_and, (1,)),
            "or": lambda x: lax.reduce(x, np.int8(0), lax.bitwise_or, (0,)),
            "xor": lambda x: lax.reduce(x, np.int8(5), lax.bitwise_xor, (0, 1)),
            "parity": lambda x: lax.reduce(x > 0, np.bool_(False), lax.bitwise_xor, (1,)),
            "first true": lambda x: jnp.argmax(x > 4, 1),
            "first false": lambda x: jnp.argmin(x > 4, 1),
        },
        BYTES,
    )


def test_bit_operations_agree_with_xla() -> None:
    integers = np.array([0, 1, -1, 127, -128, 2**40, -(2**63)], np.int64)
    floats = np.concatenate([EDGES, np.array([240, 248, 256, 1 / 64, 1 / 128, 1e-3], np.float32)])
    types = ("int8", "uint16", "uint32", "int64", "uint64")
    check_all(
        {
            **{f"ones of {each}": lambda x, _, t=each: lax.population_count(x.astype(t)) for each in types},
            **{f"zeros of {each}": lambda x, _, t=each: lax.clz(x.astype(t)) for each in types},
            "half": lambda _, y: lax.reduce_precision(y, 5, 10),
            "bfloat16": lambda _, y: lax.reduce_precision(y, 8, 7),
            "eight bits": lambda _, y: lax.reduce_precision(y, 4, 3),
            "parts": lambda x, _: lax.bitcast_convert_type(x, np.int16),
            "whole": lambda x, _: lax.bitcast_convert_type(lax.bitcast_convert_type(x, np.uint8), np.int64),
            "parts of floats": lambda _, y: lax.bitcast_convert_type(y, np.uint8),
        },
        integers,
        floats,
    )


def text(body: str, *arguments: str, result: str) -> StablehloModel:
    named = ", ".join(f"%x{number}: {kind}" for number, kind in enumerate(arguments))
    return read(f"func.func @main({named}) -> {result} {{\n{body}\nreturn %y : {result}\n}}".encode(), {})


@pytest.mark.parametrize("direction", ["LT", "GE", "EQ"])
def test_floats_have_a_total_order(direction: str) -> None:
    numbers = np.array([NAN, -NAN, 0.0, -0.0, INF, -INF, 1, -1], np.float32)
    first, second = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(numbers, numbers))
    compared = f"%y = stablehlo.compare {direction}, %x0, %x1, TOTALORDER : (tensor<64xf32>, tensor<64xf32>)"
    file = text(f"{compared} -> tensor<64xi1>", *["tensor<64xf32>"] * 2, result="tensor<64xi1>")
    check_file(file, [first, second])


def sort_by(key: str, kind: str = "LT, %p, %q, FLOAT") -> StablehloModel:
    """Return a program that sorts floats by what `key` computes of them."""
    one = "tensor<f32>"
    body = f"""
      %y = "stablehlo.sort"(%x0) <{{dimension = 0 : i64, is_stable = true}}> ({{
      ^bb0(%a: {one}, %b: {one}):
        %p = {key.format("%a")} : {one}
        %q = {key.format("%b")} : {one}
        %c = stablehlo.compare {kind} : ({one}, {one}) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }}) : (tensor<9xf32>) -> tensor<9xf32>"""
    return text(body, "tensor<9xf32>", result="tensor<9xf32>")


UNSORTED = np.array([1, -0.0, 0.0, -3, 0.0, -0.0, 2.5, -INF, INF], np.float32)


@pytest.mark.parametrize("kind", ["LT, %p, %q, TOTALORDER", "GT, %p, %q, TOTALORDER", "LT, %q, %p, FLOAT"])
def test_zeros_are_sorted_as_xla_sorts_them(kind: str) -> None:
    check_file(sort_by("stablehlo.optimization_barrier {}", kind), [UNSORTED])


@pytest.mark.parametrize("key", ["stablehlo.abs {}", "stablehlo.multiply {0}, {0}", "stablehlo.floor {}"])
def test_sorts_with_other_comparators_are_refused(key: str) -> None:
    """Such a comparator orders 1 and 2 as the plain comparison does, but not other numbers."""
    with pytest.raises(
        ModelError, match=r"operation stablehlo.sort at line .* its comparator does more than"
    ):
        sort_by(key).to_relax()


def test_an_argmax_with_another_comparison_is_refused() -> None:
    body = """
      %places = stablehlo.iota dim = 0 : tensor<4xi32>
      %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %none = stablehlo.constant dense<0> : tensor<i32>
      %v, %y = "stablehlo.reduce"(%x0, %places, %least, %none) <{dimensions = array<i64: 0>}> ({
      ^bb0(%a: tensor<f32>, %i: tensor<i32>, %b: tensor<f32>, %j: tensor<i32>):
        %p = stablehlo.abs %a : tensor<f32>
        %q = stablehlo.abs %b : tensor<f32>
        %more = stablehlo.compare GT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %same = stablehlo.compare EQ, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %before = stablehlo.compare LT, %i, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
        %tie = stablehlo.and %same, %before : tensor<i1>
        %c = stablehlo.or %more, %tie : tensor<i1>
        %m = stablehlo.select %c, %a, %b : tensor<i1>, tensor<f32>
        %n = stablehlo.select %c, %i, %j : tensor<i1>, tensor<i32>
        stablehlo.return %m, %n : tensor<f32>, tensor<i32>
      }) : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)"""
    with pytest.raises(ModelError, match="reduced together only to an extreme and its first place"):
        text(body, "tensor<4xf32>", result="tensor<i32>").to_relax()


def test_sorts_by_several_keys_agree_with_xla() -> None:
    first = np.array([1, 0, 1, 0, 1, 0], np.int32)
    second = np.array([3, 1, 2, NAN, 2, 1], np.float32)
    check_all(
        {
            "two keys": lambda x, y: lax.sort((x, y, jnp.arange(6)), num_keys=2),
            "the second": lambda x, y: lax.sort((y, x), num_keys=1),
            "booleans": lambda x, y: lax.sort((x > 0, y), num_keys=1),
            "lexsort": lambda x, y: jnp.lexsort((y, x)),
        },
        first,
        second,
    )


def test_functions_of_bfloat16_agree_with_xla() -> None:
    x = np.array([NAN, INF, -INF, 0.0, -0.0, 0.5, -0.75, 2.5, 30, -30], ml_dtypes.bfloat16)
    functions = {
        each.__name__: each
        for each in (lax.log1p, lax.expm1, lax.cbrt, lax.is_finite, lax.exp, lax.tanh, lax.rsqrt)
    }
    check_all({**functions, "rem": lambda x: lax.rem(x, x[::-1]), "pow": lambda x: lax.pow(x, x[::-1])}, x)


def test_batch_groups_of_convolutions_agree_with_xla() -> None:
    """Gradients of convolutions have them."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 6, 5, 3), (3, 2, 3, 4)))
    axes = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "padding": "SAME"}

    def loss(x: Any, w: Any) -> Any:
        return (lax.conv_general_dilated(x, w, (2, 1), feature_group_count=3, **axes) ** 2).sum()

    check_all(
        {
            "groups": lambda x, w: lax.conv_general_dilated(x, w, (1, 2), batch_group_count=2, **axes),
            "gradient": lambda x, w: jax.grad(loss, 1)(x, jnp.concatenate([w[:, :, :1]] * 3, 3)) / 100,
        },
        x,
        w,
    )


def test_powers_of_integers_agree_with_xla() -> None:
    numbers = np.array([-3, -1, 0, 1, 2, 7], np.int32)
    base, exponent = (np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(numbers, numbers))
    kind = "tensor<36xi32>"
    check_file(text(f"%y = stablehlo.power %x0, %x1 : {kind}", kind, kind, result=kind), [base, exponent])


def test_scattered_booleans_and_far_slices_agree_with_xla() -> None:
    flags, values = np.zeros(4, bool), np.array([1, 0, 1], bool)
    check_all(
        {
            "booleans": lambda x, y, _: x.at[jnp.array([1, 1, 3])].max(y),
            "far": lambda x, y, far: lax.dynamic_slice(jnp.arange(9), (far,), (3,)),
        },
        flags,
        values,
        np.array(2**64 - 5, np.uint64),
    )
