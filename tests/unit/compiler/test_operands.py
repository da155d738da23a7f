"""A candidate's outputs are compared with expected ones, for several kinds of arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tvm import te, topi

from compiler.measuring.expected import Expected, from_keys, keys_of
from compiler.measuring.gpu_comparison import checked_values
from compiler.measuring.operands import OUTPUT_FILL, Operands, ReferencePrograms
from compiler.measuring.random_inputs import InputKind, Parameter, parameters
from compiler.measuring.rounding import Rounding
from compiler.vocabulary import NARROW_BUFFERS
from search.dag import NARROW
from tests.workloads import WORKLOADS

SIZE = 6
ROUNDED = Rounding(relative=1e-3)


def operands(outputs: Any, dtype: str = "float32") -> Operands:
    """Return the operands of a workload that computes `outputs` from any inputs."""
    data = te.placeholder((SIZE,), dtype, name="data")
    result = te.compute((SIZE,), lambda i: data[i] + data[i], name="result")
    function = te.create_prim_func([data, result])
    compute = lambda _, output: output.copyfrom(np.array(outputs, dtype))  # noqa: E731
    return Operands(function, tvm.cpu(), ReferencePrograms(compute, compute, Rounding.of(function)))


def difference(given: Operands, outputs: Any, dtype: str = "float32") -> str:
    return given.difference(InputKind.ORDINARY, [None, tvm.runtime.tensor(np.array(outputs, dtype))])


@pytest.mark.parametrize("kind", InputKind)
def test_arguments_are_the_same_every_time_and_outputs_garbage(kind: InputKind) -> None:
    made = operands(np.zeros(SIZE))
    first, output = made.arguments(kind)
    before = first.numpy()
    output.copyfrom(np.ones(SIZE, "float32"))
    again, output = made.arguments(kind)
    assert again.same_as(first)
    assert np.array_equal(output.numpy(), np.full(SIZE, OUTPUT_FILL, "float32"))
    first.copyfrom(np.zeros(SIZE, "float32"))
    made.forget()
    assert np.array_equal(made.arguments(kind)[0].numpy(), before)


def test_arguments_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[InputKind] = []
    draw = InputKind.arrays

    def arrays(kind: InputKind, given: Sequence[Parameter]) -> list[NDArray[Any]]:
        drawn.append(kind)
        return draw(kind, given)

    monkeypatch.setattr(InputKind, "arrays", arrays)
    made = operands(np.zeros(SIZE))
    for kind in made.kinds * 2:
        made.arguments(kind)
    assert drawn == list(made.kinds)


@pytest.mark.parametrize(
    "values", [np.arange(SIZE), [np.nan, np.inf, -np.inf, 1.0, 2.0, 3.0], np.zeros(SIZE)]
)
def test_the_expected_outputs_are_right(values: Any) -> None:
    assert difference(operands(values), values) == ""


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 5.1, OUTPUT_FILL])
@pytest.mark.parametrize("wanted", [5.0, np.inf, -np.inf, np.nan])
def test_a_single_wrong_value_is_found(wanted: float, wrong: float) -> None:
    values = np.arange(SIZE, dtype="float32")
    values[3] = wanted
    made = operands(values)
    assert difference(made, values) == ""
    if np.array_equal(wanted, wrong, equal_nan=True):
        return
    values[3] = wrong
    assert difference(made, values).startswith(f"output 1 of ordinary values: 1 of {SIZE} values differ")


@pytest.mark.parametrize(
    ("dtype", "step"), [("int32", 1), ("int8", 1), ("float64", 1e-12), ("float32", 1e-3), ("float16", 1.0)]
)
def test_every_type_has_a_tolerance_of_its_own(dtype: str, step: float) -> None:
    values = np.array([100] * SIZE, dtype)
    made = operands(values, dtype)
    assert difference(made, values, dtype) == ""
    values[0] += step
    assert difference(made, values, dtype) != ""


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=SIZE, max_size=SIZE), st.floats(-4e-3, 4e-3))
def test_values_may_differ_by_a_share_of_their_size_and_of_the_usual_size(
    values: list[float], off: float
) -> None:
    wanted = np.array(values, "float32")
    actual = (wanted + off * np.abs(wanted)).astype("float32")
    error = np.abs(actual.astype(float) - wanted)
    bounds = 1e-3 * (np.abs(wanted.astype(float)) + np.sqrt(np.mean(np.square(wanted.astype(float)))))
    if np.any(np.abs(error - bounds) < 1e-4 * bounds):
        return  # rounding errors decide
    expected = Expected.of(wanted, None, ROUNDED)
    assert (expected.difference(actual) == "") == bool((error <= bounds).all())


@given(
    st.sampled_from(["float16", "float32", "float64"]),
    st.lists(st.floats(width=16), min_size=SIZE, max_size=SIZE),
    st.lists(st.floats(-2e-3, 2e-3), min_size=SIZE, max_size=SIZE),
)
def test_nothing_is_accepted_beyond_the_bounds(dtype: str, values: list[float], off: list[float]) -> None:
    """Whatever the type in which differences are computed."""
    wanted = np.array(values).astype(dtype)
    with np.errstate(all="ignore"):
        actual = (wanted * (1 + np.array(off))).astype(dtype)
        error = np.abs(actual.astype(np.longdouble) - wanted.astype(np.longdouble))
        equal = (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
        allowed = equal | (error <= ROUNDED.bounds(wanted, None))
    assert Expected.of(wanted, None, ROUNDED).difference(actual) != "" or allowed.all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_subnormal_numbers_may_differ_by_one_step(dtype: str) -> None:
    least = np.finfo(dtype).smallest_subnormal
    expected = Expected.of(np.array([3 * least], dtype), None, Rounding(relative=1e-7, floor=1.0))
    assert expected.difference(np.array([4 * least], dtype)) == ""
    assert expected.difference(np.array([5 * least], dtype)) != ""


def test_error_amplifying_workloads_may_differ_more() -> None:
    """The reference's own outputs move by 0.1 when its inputs move by as much as the roundings."""
    wanted = np.ones(SIZE, "float32")
    assert Expected.of(wanted, wanted, ROUNDED).difference(wanted + np.float32(0.1)) != ""
    moved = wanted + np.float32(0.1)
    assert Expected.of(wanted, moved, ROUNDED).difference(wanted - np.float32(0.1)) == ""


def test_a_value_near_the_overflow_limit_may_be_infinite() -> None:
    wanted = np.array([1.0, np.inf, 3e38, np.nan, np.inf, np.inf], "float32")
    moved = np.array([1.0, 3e38, np.inf, 1.0, np.inf, np.inf], "float32")
    actual = np.array([1.0, 3e38, np.inf, 1.0, np.inf, 1.0], "float32")
    assert Expected.of(wanted, moved, ROUNDED).difference(actual).startswith(f"1 of {SIZE} values differ")


def test_a_thousandth_of_rounded_integers_may_differ_by_one() -> None:
    wanted = np.arange(2000, dtype="int8")
    stepped = Rounding(has_steps=True)
    for count, right in ((2, True), (3, False)):
        actual = wanted.copy()
        actual[:count] += 1
        assert (Expected.of(wanted, None, stepped).difference(actual) == "") is right


@given(
    terms=st.integers(2, 20_000),
    blocks=st.integers(1, 64),
    mean=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1 << 30),
)
def test_a_sum_in_any_order_is_within_the_bounds(terms: int, blocks: int, mean: float, seed: int) -> None:
    """In order, like the reference; in blocks and from the end, like a schedule."""
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(mean, 1, (4, terms)).astype("float32") for _ in range(2))
    products = a * b
    data, weight = (te.placeholder((4, terms), name=name) for name in ("data", "weight"))
    k = te.reduce_axis((0, terms), name="k")
    summed = te.compute((4,), lambda i: te.sum(data[i, k] * weight[i, k], axis=k), name="sum")
    rounding = Rounding.of(te.create_prim_func([data, weight, summed]))

    def in_order(values: Any) -> Any:
        return np.cumsum(values, axis=-1, dtype="float32")[..., -1]

    expected = Expected.of(in_order(products), None, rounding)
    parts = [in_order(part) for part in np.array_split(products[:, ::-1], min(blocks, terms), axis=1)]
    assert expected.difference(in_order(np.stack(parts, axis=-1))) == ""


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("take", [(0, 49)]),
        ("gather", [(0, 15)]),
        ("int8", [(-128, 127), (-128, 127)]),
        ("argmax", []),
    ],
)
def test_integers_are_drawn_from_what_the_workload_takes(name: str, ranges: list[tuple[int, int]]) -> None:
    function = WORKLOADS[name]()["main"]
    *inputs, _ = parameters(function)
    assert [parameter.range for parameter in inputs if not parameter.is_float] == ranges


def test_narrow_integers_are_drawn_up_to_their_ends() -> None:
    function = WORKLOADS["int8"]()["main"].with_attr(NARROW_BUFFERS, [1])
    data, weight, _ = parameters(function)
    assert (data.range, weight.range) == ((-128, 127), (-NARROW, NARROW))
    drawn = weight.draw(InputKind.LARGE, np.random.default_rng(0))
    assert (drawn.min(), drawn.max()) == (-NARROW, NARROW)


@pytest.mark.parametrize(
    ("compute", "ends"),
    [
        (lambda x: x, (-(1 << 31), (1 << 31) - 1)),
        (lambda x: te.max(x, te.const(0, "int32")), (-(1 << 31), (1 << 31) - 1)),
        (lambda x: x * 3 + 1, (-(1 << 14), 1 << 14)),
        (lambda x: te.const(100, "int32") // x, (0, 1)),
        (lambda x: te.const(1, "int32") << x, (0, 1)),
    ],
    ids=["copied", "compared", "calculated with", "divided by", "shifted by"],
)
def test_arguments_that_may_overflow_are_small(compute: Callable[[Any], Any], ends: tuple[int, int]) -> None:
    data = te.placeholder((SIZE,), "int32", name="data")
    function = te.create_prim_func([data, te.compute((SIZE,), lambda i: compute(data[i]), name="result")])
    assert parameters(function)[0].range == ends


@pytest.mark.parametrize(("dtype", "ends"), [("int32", (-128, 255)), ("uint8", (0, 255))])
def test_a_single_integer_is_drawn_like_a_zero_of_bytes(dtype: str, ends: tuple[int, int]) -> None:
    """A larger one would hide the integers that it is added to."""
    data, zero = (te.placeholder(shape, dtype, name="x") for shape in ((SIZE, SIZE), (1, 1)))
    function = te.create_prim_func([data, zero, topi.add(data, topi.multiply(zero, data))])
    assert parameters(function)[1].range == ends


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_large_integers_are_the_ends_of_their_range(dtype: str) -> None:
    ends = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    drawn = Parameter((1000,), dtype, ends).draw(InputKind.LARGE, np.random.default_rng(0))
    assert (drawn.dtype, int(drawn.min()), int(drawn.max())) == (np.dtype(dtype), *ends)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats_are_negative_zero_large_and_subnormal(dtype: str) -> None:
    rng = np.random.default_rng(0)
    parameter = Parameter((1000,), dtype)
    large = parameter.draw(InputKind.LARGE, rng).astype(float)
    assert np.isfinite(large).all()
    assert (large < -5).any()
    assert (large > 5).any()
    assert (large == 0).any()
    subnormal = parameter.draw(InputKind.SUBNORMAL, rng)
    assert np.count_nonzero(subnormal) > 900
    assert np.count_nonzero(np.abs(subnormal.astype(float)) < _smallest_normal(dtype)) > 900


def _smallest_normal(dtype: str) -> float:
    return {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float64": 2.0**-1022, "float16": 2.0**-14}[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "uint16", "bool"])
def test_the_keys_of_accepted_values_agree_with_the_comparison(dtype: str) -> None:
    expected, found = checked_values(dtype)
    least, greatest = expected.accepted()
    keys = keys_of(found)
    assert np.array_equal((keys < least) | (keys > greatest), expected.far(found))
    if expected.bounds is None:
        return
    # Both ends are accepted, and most neighbours beyond are not. The others' differences are rounded.
    for end, way in ((least, -1), (greatest, 1)):
        values = from_keys(end, found.dtype)
        assert not expected.far(np.where(np.isnan(expected.values), expected.values, values)).any()
        finite = np.isfinite(expected.values)
        assert expected.far(from_keys(end + way, found.dtype))[finite].mean() > 0.9


def test_any_value_is_accepted_where_the_reference_may_be_infinite() -> None:
    expected = Expected(np.array([1.0, np.nan], "float32"), np.array([np.inf, np.inf], "float32"), 0)
    least, greatest = expected.accepted()
    for value in (np.nan, -np.inf, np.inf, 0.0):
        keys = keys_of(np.full(2, value, "float32"))
        assert ((least <= keys) & (keys <= greatest)).all()
