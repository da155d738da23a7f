"""Packing that only moves elements needs no compiled function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te
from tvm.s_tir import Schedule

from compiler.constants.permutations import permutations_of

Indices = Callable[..., list[Any]]
BOTH_AXES = (6, 8)


def _packing(shape: Sequence[int], indices: Indices, dtype: str = "float32") -> Any:
    """Return a function that writes the element at `axes` to `indices(*axes)`."""
    source = te.placeholder(shape, dtype, "source")
    copy = te.compute(shape, lambda *axes: source[axes], name="copy")
    schedule = Schedule(tvm.IRModule({"main": te.create_prim_func([source, copy])}), debug_mask="none")
    schedule.transform_layout("copy", ("write", 0), indices, assume_injective_transform=True)
    return schedule.mod["main"]


def _packed_shape(function: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in function.params[-1].ty.shape)


@st.composite
def _layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Indices]:
    """Draw a shape and a layout: axes are split, the parts are reordered, and some neighbours are fused."""
    extents = draw(
        st.lists(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    strides = [[math.prod(parts[at + 1 :]) for at in range(len(parts))] for parts in extents]
    every = [
        (axis, stride, extent)
        for axis, parts in enumerate(extents)
        for stride, extent in zip(strides[axis], parts, strict=True)
    ]
    ordered = draw(st.permutations(every))
    starts = [True, *draw(st.lists(st.booleans(), min_size=len(every) - 1, max_size=len(every) - 1))]

    def indices(*axes: Any) -> list[Any]:
        found: list[Any] = []
        for (axis, stride, extent), starts_index in zip(ordered, starts, strict=True):
            part = axes[axis] // stride % extent
            if starts_index:
                found.append(part)
            else:
                found[-1] = found[-1] * extent + part
        return found

    return tuple(math.prod(parts) for parts in extents), indices


@settings(deadline=None, max_examples=60)
@given(_layouts())
def test_every_order_of_parts_of_axes_is_a_permutation(layout: tuple[tuple[int, ...], Indices]) -> None:
    shape, indices = layout
    function = _packing(shape, indices)
    values = np.arange(math.prod(shape), dtype="float32").reshape(shape)
    expected = np.empty(_packed_shape(function), "float32")
    for axes in np.ndindex(shape):
        expected[tuple(indices(*axes))] = values[axes]
    packed = tvm.runtime.empty(expected.shape, "float32")
    permutations = permutations_of(function)
    assert permutations is not None
    permutations(tvm.runtime.tensor(values), packed)
    np.testing.assert_array_equal(packed.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float16", "bfloat16", "float32", "int64"])
def test_elements_of_every_type_keep_their_bits(dtype: str) -> None:
    permutations = permutations_of(_packing(BOTH_AXES, lambda i, j: [j // 4, i, j % 4], dtype))
    given_bits = np.random.default_rng(0).integers(
        0, 2, 48 * np.dtype(f"u{_itemsize(dtype)}").itemsize, "uint8"
    )
    source, packed = (tvm.runtime.empty(shape, dtype) for shape in (BOTH_AXES, (2, 6, 4)))
    _bytes(source)[...] = given_bits
    assert permutations is not None
    permutations(source, packed)
    moved = given_bits.reshape(6, 2, 4, -1).transpose(1, 0, 2, 3)
    np.testing.assert_array_equal(_bytes(packed), moved.ravel())


def _itemsize(dtype: str) -> int:
    return int(tvm.DataType(dtype).itemsize)


def _bytes(tensor: Any) -> Any:
    size = math.prod(tensor.shape) * _itemsize(tensor.dtype)
    return np.from_dlpack(tensor._create_view((size,), "uint8"))


@pytest.mark.parametrize(
    "indices",
    [
        pytest.param(lambda i, j: [i, j // 3, j % 3], id="some places stay empty"),
        pytest.param(lambda i, j: [(i * 8 + j) // 12, (i * 8 + j) % 12], id="an axis of both is cut"),
        pytest.param(lambda i, j: [i, j * 2], id="every second place"),
        pytest.param(lambda i, j: [i, (j + 3) % 8], id="rotated"),
    ],
)
def test_other_orders_are_compiled(indices: Indices) -> None:
    assert permutations_of(_packing(BOTH_AXES, indices)) is None


@pytest.mark.parametrize(
    "element",
    [
        pytest.param(lambda source, i, j: source[i, j] * 2.0, id="computed"),
        pytest.param(lambda source, i, j: source[i, 7 - j], id="read backwards"),
        pytest.param(lambda source, i, j: source[i, 0], id="one column"),
    ],
)
def test_functions_that_do_more_are_compiled(element: Callable[..., Any]) -> None:
    source = te.placeholder(BOTH_AXES, "float32", "source")
    function = te.create_prim_func([source, te.compute(BOTH_AXES, lambda i, j: element(source, i, j))])
    assert permutations_of(function) is None
