"""StableHLO programs compute what XLA does where numbers are NaN, infinite, extreme, or out of range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from compiler.importing.formats.stablehlo_model import read
from compiler.verifying.imported import Imported
from tests.stablehlo_models import exported

jnp, lax = jax.numpy, jax.lax

Array = NDArray[Any]
TARGET = '{"kind":"llvm","num-cores":1}'
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


def pairs(dtype: str) -> tuple[Array, Array]:
    """Return every pair of some integers, the least and the greatest among them."""
    bounds = np.iinfo(dtype)
    some = [bounds.min, bounds.min + 1, 0, 1, 7, 8, 31, 64, bounds.max]
    numbers = np.array([*some, *([-1, -7, -8] if bounds.min else [])]).astype(dtype)
    first, second = np.meshgrid(numbers, numbers)
    return first.ravel(), second.ravel()


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32"])
def test_quotients_and_shifts_of_all_integers(dtype: str) -> None:
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


def test_nan_equals_nothing() -> None:
    functions = [
        jnp.isnan,
        jnp.nan_to_num,
        lambda x: x == x,
        lambda x: x != x[::-1],
        lambda x: x.astype(bool),
    ]
    check(lambda x: [function(x) for function in functions], EDGES)


def test_nothing_has_the_largest_element_that_it_begins_with() -> None:
    check(lambda x: jnp.max(x, axis=1, initial=-5) + jnp.zeros(3, "float32"), np.zeros((3, 0), np.float32))


def test_products_of_booleans() -> None:
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
