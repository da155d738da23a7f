"""How large the factors and shifts of a quantized workload are, so that its results are ordinary numbers.

Sums of products of bytes are about a hundred thousand. If the scale that multiplies them were about one, like
other floats, nearly every output byte would be the least or the greatest, and a comparison would check
little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tvm import ir, tirx
from tvm.s_tir import SBlock

from compiler.tir_nodes import find_all, op_name, reduced

# The values before a quantizer's bounds have a standard deviation of this fraction of the range between.
SPREAD = 1 / 8


class Moments(NamedTuple):
    """The mean and the variance of random numbers."""

    mean: float
    variance: float

    @classmethod
    def uniform(cls, low: int, high: int) -> Moments:
        return cls((low + high) / 2, (high - low) ** 2 / 12)

    @property
    def size(self) -> float:
        """The root mean square."""
        return math.sqrt(self.mean**2 + self.variance)

    def plus(self, other: Moments, sign: int = 1) -> Moments:
        return Moments(self.mean + sign * other.mean, self.variance + other.variance)

    def times(self, other: Moments) -> Moments:
        mean = self.mean * other.mean
        return Moments(mean, self.size**2 * other.size**2 - mean**2)

    def summed(self, terms: int) -> Moments:
        return Moments(terms * self.mean, terms * self.variance)


NORMAL = Moments(0.0, 1.0)
# The argument that most results of a call equal nearly: padding adds few other elements.
_VALUE = {"if_then_else": 1, "nearbyint": 0}


def magnitudes(function: tirx.PrimFunc, ranges: Mapping[int, tuple[int, int]]) -> dict[int, Moments]:
    """Return by position how to draw the float parameters that multiply converted integers or lead to a
    quantizer; others are normally distributed. `ranges` are the ranges of integer parameters by position.

        lv = T.Cast("float32", sums[i]) * scale[i] + bias[i]
        bytes[i] = T.Cast("uint8", T.min(T.max(T.nearbyint(lv), 0), 255))
    ->
        scale: 32 / 1e5, on average; bias: 127.5
    """
    return _Magnitudes(function, ranges).found


class _Magnitudes:
    def __init__(self, function: tirx.PrimFunc, ranges: Mapping[int, tuple[int, int]]) -> None:
        self.found: dict[int, Moments] = {}
        self._ranges = ranges
        self._positions = {param: number for number, param in enumerate(function.params)}
        # Of each computed buffer: the stored value, and the number of terms that it sums.
        self._stored: dict[Any, tuple[Any, int]] = {}
        self._known: dict[Any, Moments] = {}
        for block in find_all(function.body, SBlock):
            if not find_all(block.body, SBlock):
                for store in find_all(block.body, tirx.BufferStore):
                    self._stored[store.buffer] = (store.value, reduced(block))
        values = [value for value, _ in self._stored.values()]
        for value in values:
            for node in find_all(value, tirx.Mul, tirx.Sub):
                self._restore(node)
        lows, highs = ([*_bounds(values, kind)] for kind in (tirx.Max, tirx.Min))
        if not lows or not highs:
            return
        low, high = min(lows), max(highs)
        for value in values:
            for call in find_all(value, ir.Call):
                if op_name(call) == "nearbyint":
                    self._aim(call.args[0], (low + high) / 2, (high - low) * SPREAD)

    def _restore(self, node: Any) -> None:
        """Draw a scale or zero of converted integers so that the result is about one."""
        position = self._position(node.b)
        if position is None or not self._is_converted(node.a):
            return
        before = self._moments(node.a)
        if isinstance(node, tirx.Sub):
            self._set(position, Moments(before.mean, 1.0))
        else:
            self._set(position, Moments(0.0, 1 / max(before.size, 1.0) ** 2))

    def _aim(self, expr: Any, mean: float, size: float) -> None:
        """Draw factors and shifts so that an expression has this mean and standard deviation, if its form
        allows it."""
        match expr:
            case ir.TensorLoad() if expr.source in self._stored:
                value, terms = self._stored[expr.source]
                self._aim(_term(value, expr.source), mean / terms, size / math.sqrt(terms))
            case tirx.Add() if (position := self._position(expr.b)) is not None:
                self._aim(expr.a, 0.0, size)
                self._set(position, Moments(mean - self._moments(expr.a).mean, 1.0))
            case tirx.Add():
                self._aim(expr.a, mean, size / math.sqrt(2))
                self._aim(expr.b, 0.0, size / math.sqrt(2))
            case tirx.Mul() if (position := self._position(expr.b)) is not None:
                before = self._moments(expr.a).size
                self._set(position, Moments(0.0, (size / before) ** 2 if before else 1.0))
            case tirx.Max() | tirx.Min():
                self._aim(expr.a, mean, size)

    def _position(self, expr: Any) -> int | None:
        """Return the position of the float parameter that an expression reads; None for others."""
        if not isinstance(expr, ir.TensorLoad) or "int" in str(expr.ty.dtype):
            return None
        return self._positions.get(expr.source)

    def _is_converted(self, expr: Any) -> bool:
        """Return whether an expression is an integer that was converted to a float, or its difference from a
        zero."""
        match expr:
            case tirx.Cast():
                return "int" in str(expr.value.ty.dtype)
            case tirx.Sub():
                return self._is_converted(expr.a)
            case ir.TensorLoad() if expr.source in self._stored:
                return self._is_converted(self._stored[expr.source][0])
        return False

    def _set(self, position: int, moments: Moments) -> None:
        self.found[position] = moments
        self._known.clear()

    def _moments(self, expr: Any) -> Moments:
        match expr:
            case tirx.IntImm() | tirx.FloatImm():
                return Moments(float(expr.value), 0.0)
            case tirx.Cast():
                return self._moments(expr.value)
            case tirx.Add() | tirx.Sub():
                sign = 1 if isinstance(expr, tirx.Add) else -1
                return self._moments(expr.a).plus(self._moments(expr.b), sign)
            case tirx.Mul():
                return self._moments(expr.a).times(self._moments(expr.b))
            case tirx.Max() | tirx.Min():
                return self._moments(expr.a)
            case ir.Call() if op_name(expr) in _VALUE:
                return self._moments(expr.args[_VALUE[op_name(expr)]])
            case ir.TensorLoad():
                if expr.source not in self._known:
                    self._known[expr.source] = self._moments_of(expr.source)
                return self._known[expr.source]
        return NORMAL

    def _moments_of(self, buffer: Any) -> Moments:
        if buffer in self._stored:
            value, terms = self._stored[buffer]
            return self._moments(_term(value, buffer)).summed(terms)
        position = self._positions[buffer]
        if position in self._ranges:
            return Moments.uniform(*self._ranges[position])
        return self.found.get(position, NORMAL)


def _term(value: Any, buffer: Any) -> Any:
    """Return what a block adds to a buffer in each step; the stored value of other blocks."""
    is_sum = isinstance(value, tirx.Add) and isinstance(value.a, ir.TensorLoad)
    return value.b if is_sum and value.a.source.same_as(buffer) else value


def _bounds(values: Iterable[Any], kind: type) -> Iterator[float]:
    """Yield the constant bounds of all maxima or minima."""
    for value in values:
        for node in find_all(value, kind):
            if isinstance(node.b, tirx.IntImm | tirx.FloatImm) and math.isfinite(float(node.b.value)):
                yield float(node.b.value)
