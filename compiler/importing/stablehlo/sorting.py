"""Operations that sort.

A comparator is a region of the program. It is recognised by its results for some numbers: it has to compare
elements of the tensors, up or down, one tensor after the other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from compiler.constants.fold import constant
from compiler.importing.operators.floats import reinterpreted
from compiler.importing.stablehlo.attributes import number
from compiler.importing.stablehlo.elementwise import HALVES, as_type, in_total_order
from compiler.importing.stablehlo.importer import Converter, Importer, Tensor
from compiler.importing.values import UnsupportedOperator, Value, numpy_dtype

# Numbers that a comparator is tried with, by the first letter of their type. What is computed of them, such
# as sizes, remainders and roundings, has another order.
_NUMBERS: Mapping[str, tuple[Any, ...]] = {
    "b": (False, True),
    "u": (0, 2, 9, 113, 200),
    "i": (-105, -3, 0, 2, 9, 104),
    "f": (-105.5, -3.0, -0.5, 0.0, 2.0, 2.25, 9.0, 104.0, 104.0001),
}
_TRIALS = 100


@dataclass(frozen=True)
class _Key:
    """One of the tensors that decide an order. `is_total`: -0.0 comes before 0.0."""

    position: int
    descending: bool
    is_total: bool


def _sort(importer: Importer, op: Any) -> list[Tensor]:
    """Sort tensors by one or more of them. Equal elements stay in their order."""
    operands = importer.operands(op)
    axis = number(op, "dimension", operands[0].rank - 1) % operands[0].rank
    keys = _keys(importer, op.regions[0], [operand.dtype for operand in operands])
    values = [importer.full(operand) for operand in operands]
    if values[0].shape[axis] <= 1:
        return operands
    order: Any = None
    # The last key first: a later sort keeps the order of what it finds equal.
    for key in reversed(keys):
        ranks = _ordered(importer, operands[key.position], key.is_total).expr
        if order is not None:
            ranks = importer.graph.emit(relax.op.gather_elements(ranks, order, axis)).expr
        places = importer.graph.emit(relax.op.argsort(ranks, axis, key.descending, "int32")).expr
        order = (
            places
            if order is None
            else importer.graph.emit(relax.op.gather_elements(order, places, axis)).expr
        )
    return [importer.emit(relax.op.gather_elements(value.expr, order, axis)) for value in values]


def _keys(importer: Importer, region: Any, dtypes: Sequence[str]) -> list[_Key]:
    """Return the tensors that decide an order, the first one first. Raises UnsupportedOperator."""

    def is_before(first: Sequence[Any], second: Sequence[Any]) -> Any:
        numbers = itertools.chain(*zip(first, second, strict=True))
        return importer.apply(region, *numbers)[0]

    numbers = [_numbers(dtype) for dtype in dtypes]
    base = [each[0] for each in numbers]

    def with_one(position: int, one: Any) -> list[Any]:
        return [one if k == position else other for k, other in enumerate(base)]

    keys = []
    for position, each in enumerate(numbers):
        low, high = with_one(position, each[0]), with_one(position, each[-1])
        rises, falls = is_before(low, high), is_before(high, low)
        if rises != falls:
            zeros = with_one(position, -0.0), with_one(position, 0.0)
            is_total = isinstance(each[0], float) and is_before(*(zeros if rises else zeros[::-1])) is True
            keys.append(_Key(position, not rises, is_total))

    def precedes(first: _Key, second: _Key) -> int:
        """Let one key decide for the first element, the other key for the second."""
        better, worse = list(base), list(base)
        for key, (at_first, at_last) in ((first, (better, worse)), (second, (worse, better))):
            ends = numbers[key.position][0], numbers[key.position][-1]
            at_first[key.position], at_last[key.position] = ends[::-1] if key.descending else ends
        return -1 if is_before(better, worse) else 1

    keys.sort(key=functools.cmp_to_key(precedes))
    if not keys or any(
        is_before(first, second) is not _is_before(keys, first, second) for first, second in _trials(numbers)
    ):
        raise UnsupportedOperator(
            "its comparator does more than to compare elements, up or down, one tensor after the other: sort "
            "by what it computes of them, and carry the elements along"
        )
    return keys


def _numbers(dtype: str) -> list[Any]:
    chosen = np.array(_NUMBERS["f" if "float" in dtype else dtype[0]])
    return [one.item() for one in np.unique(chosen.astype(numpy_dtype(dtype)).astype(chosen.dtype))]


def _is_before(keys: Sequence[_Key], first: Sequence[Any], second: Sequence[Any]) -> bool:
    for key in keys:
        a, b = first[key.position], second[key.position]
        if a != b:
            return bool(a > b if key.descending else a < b)
    return False


def _trials(numbers: Sequence[Sequence[Any]]) -> Iterable[tuple[Sequence[Any], Sequence[Any]]]:
    """Yield pairs of elements: all of one tensor's, some of several tensors'."""
    if len(numbers) == 1:
        for a, b in itertools.product(numbers[0], repeat=2):
            yield (a,), (b,)
        return
    rng = np.random.default_rng(0)
    for _ in range(_TRIALS):
        first = [each[int(rng.integers(len(each)))] for each in numbers]
        second = [
            one if rng.random() < 0.5 else each[int(rng.integers(len(each)))]
            for one, each in zip(first, numbers, strict=True)
        ]
        yield first, second


def _ordered(importer: Importer, tensor: Tensor, is_total: bool = False) -> Value:
    """Return integers in the order that XLA has for the elements: NaN is the largest, and zeros are equal
    unless the order is total.

    The bits of floats, but for the sign, are integers in the order of the numbers. TVM sorts signed integers.
    """
    if is_total:
        return importer.full(in_total_order(importer, tensor))
    graph, value, dtype = importer.graph, importer.full(tensor), tensor.dtype
    if dtype in ("int32", "int64"):
        return value
    if dtype == "uint64":
        flipped = relax.op.bitwise_xor(value.expr, constant(np.array(1 << 63, np.uint64)))
        return reinterpreted(graph, graph.emit(flipped), "int64")
    if "float" not in dtype:
        return importer.full(as_type(importer, tensor, "int64" if dtype == "uint32" else "int32"))
    if dtype in HALVES:
        value = graph.emit(relax.op.astype(value.expr, "float32"))
    kind = "int64" if value.dtype == "float64" else "int32"
    highest = constant(np.array(np.iinfo(kind).max, kind))
    bits = reinterpreted(graph, value, kind).expr
    size = graph.emit(relax.op.bitwise_and(bits, highest)).expr
    is_negative = relax.op.less(bits, constant(np.array(0, kind)))
    key = graph.emit(relax.op.where(is_negative, relax.op.negative(size), size))
    return graph.emit(relax.op.where(relax.op.isnan(value.expr), highest, key.expr))


def _top_k(importer: Importer, op: Any) -> list[Tensor]:
    (data,) = importer.operands(op)
    return top_k(importer, data, number(op, "k"))


def top_k(importer: Importer, data: Tensor, count: int) -> list[Tensor]:
    """Return the largest elements along the last axis, and their places; NaN is the largest of all."""
    _, places = importer.graph.ops("TopK", 2, _ordered(importer, data), np.array([count]))
    at = as_type(importer, Tensor.of(places), "int32")
    taken = relax.op.gather_elements(importer.full(data).expr, importer.full(at).expr, data.rank - 1)
    return [importer.emit(taken), at]


CONVERTERS: Mapping[str, Converter] = {"chlo.top_k": _top_k, "stablehlo.sort": _sort}
