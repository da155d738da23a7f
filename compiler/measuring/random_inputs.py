"""Random arguments for verifying a workload. There are several kinds, because one kind hides many errors.

Indices are drawn from the range of their tensor. Other integers are drawn from the whole range of their type,
or from a range without overflow if the workload calculates with them: overflows may differ between programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import ir, tirx
from tvm.sym import Analyzer

from compiler.measuring.magnitudes import NORMAL, Moments, magnitudes
from compiler.tir_nodes import find_all
from compiler.vocabulary import NARROW_BUFFERS
from search.dag import NARROW

# Large floats are these multiples of normally distributed floats. Narrow types would overflow, and so would
# integers converted from floats.
LARGE, LARGE_OF_FEW_BITS = 128.0, 4.0
ZEROS = 0.125  # the fraction of zeros among large floats
CALCULATIONS = (tirx.Add, tirx.Sub, tirx.Mul)
# Divisors and shift widths must not be arbitrary: no zeros, no shifts beyond the type's width.
DIVISORS_AND_SHIFTS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.LShift, tirx.RShift)
# The range of a single integer that a workload calculates with, such as a zero of bytes.
ZEROS_OF_BYTES = (-128, 255)
# The range of integers if their use is unknown: they could index anything.
ANY_INDEX = (0, 1)


class InputKind(StrEnum):
    """A kind of arguments. Ordinary: normally distributed floats and integers of all sizes. Large: large
    floats, some zeros, and the ends of integers' ranges. Subnormal: floats below full precision.
    """

    ORDINARY = "ordinary values"
    LARGE = "large values"
    SUBNORMAL = "subnormal values"

    def arrays(self, parameters: Sequence[Parameter]) -> list[NDArray[Any]]:
        """Return random values for the parameters, the same at every call."""
        rng = np.random.default_rng(list(InputKind).index(self))
        return [parameter.draw(self, rng) for parameter in parameters]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a workload or a model. Integers lie in `range`, both ends included. Floats have these
    `moments`, and floats that are converted to integers stay small. A single scale, on which every result
    depends, is never zero or large.
    """

    shape: tuple[int, ...]
    dtype: str
    range: tuple[int, int] = ANY_INDEX
    is_converted: bool = False
    moments: Moments = NORMAL

    @property
    def is_float(self) -> bool:
        return not _is_integer(self.dtype)

    def draw(self, kind: InputKind, rng: np.random.Generator) -> NDArray[Any]:
        if not self.is_float:
            low, high = self.range
            if kind is InputKind.LARGE:
                ends = {low, low + 1, -1, 0, 1, high - 1, high}
                inside = [end for end in sorted(ends) if low <= end <= high]
                return rng.choice(np.array(inside, self.dtype), self.shape)
            wide = np.uint64 if low == 0 else np.int64
            return np.asarray(rng.integers(low, high, self.shape, wide, endpoint=True)).astype(self.dtype)
        is_single = self.moments != NORMAL and math.prod(self.shape) == 1
        if is_single:
            floats = np.asarray(rng.uniform(0.5, 1.5, self.shape))
        else:
            floats = np.asarray(rng.standard_normal(self.shape))
        if kind is InputKind.LARGE and not is_single:
            few_bits = self.is_converted or tvm.DataType(self.dtype).bits < 32
            large = floats * (LARGE_OF_FEW_BITS if few_bits else LARGE)
            floats = np.where(rng.random(self.shape) < ZEROS, 0.0, large)
        elif kind is InputKind.SUBNORMAL:
            floats = floats * (0.25 * float(limits(self.dtype).smallest_normal))
            return floats.astype(self.dtype)
        return (self.moments.mean + math.sqrt(self.moments.variance) * floats).astype(self.dtype)


def nudge(floats: NDArray[Any], by: float) -> NDArray[Any]:
    """Multiply each float by 1 + `by` or 1 - `by`, depending on the sign of its neighbour."""
    signs = np.copysign(by, np.roll(floats.astype(np.float32), 1))
    return (floats * (1 + signs)).astype(floats.dtype)


def limits(dtype: Any) -> Any:
    """Return numpy's finfo of a type; types of ml_dtypes work too."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def parameters(function: tirx.PrimFunc) -> list[Parameter]:
    """Return the parameters of a workload and the ranges of their values."""
    is_converted = any(
        _is_integer(cast.ty.dtype) and not _is_integer(cast.value.ty.dtype)
        for cast in find_all(function.body, tirx.Cast)
    )
    ranges = {
        number: _range(function, param)
        for number, param in enumerate(function.params)
        if _is_integer(param.ty.dtype)
    }
    moments = magnitudes(function, ranges)
    return [
        Parameter(
            tuple(int(extent) for extent in param.ty.shape),
            str(param.ty.dtype),
            ranges.get(number, ANY_INDEX),
            is_converted,
            moments.get(number, NORMAL),
        )
        for number, param in enumerate(function.params)
    ]


def _range(function: tirx.PrimFunc, param: Any) -> tuple[int, int]:
    """Return the least and the greatest integer that a parameter may hold, judged by its uses in the
    workload.
    """
    dtype = str(param.ty.dtype)
    if dtype == "bool":
        return 0, 1
    value = tirx.Var("value", dtype)
    extents = []
    for index, extent in _indices(function):
        position = _traced(function, index, param, value)
        if not find_all(position, tirx.Var, ir.TensorLoad) or not _uses(position, value):
            continue
        analyzer = Analyzer()
        analyzer.bind(value, ir.Range(tirx.const(0, dtype), tirx.const(extent, dtype)))
        if not analyzer.can_prove(tirx.all(position >= 0, position < extent)):
            return ANY_INDEX
        extents.append(extent)
    if extents:
        return 0, min(extents) - 1
    bits = _calculated_bits(function, tvm.DataType(dtype).bits)
    if bits == 0:
        return ANY_INDEX
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    narrow = (function.attrs or {}).get(NARROW_BUFFERS, ())
    if any(function.params[int(number)].same_as(param) for number in narrow):
        least, most = -NARROW, NARROW
    if bits is None:
        return least, most
    if math.prod(int(extent) for extent in param.ty.shape) == 1:
        return max(least, ZEROS_OF_BYTES[0]), min(most, ZEROS_OF_BYTES[1])
    moderate = 1 << (bits // 2 - 2)  # its square is a sixteenth of the type's range
    return max(least, -moderate), moderate


def _indices(function: tirx.PrimFunc) -> Iterator[tuple[Any, int]]:
    """Yield every index that depends on data, with the extent of the indexed dimension."""
    for access in find_all(function.body, ir.TensorLoad, tirx.BufferStore):
        buffer = access.buffer if isinstance(access, tirx.BufferStore) else access.source
        for index, extent in zip(access.indices, buffer.ty.shape, strict=True):
            if find_all(index, ir.TensorLoad):
                yield index, int(extent)


def _traced(function: tirx.PrimFunc, expression: Any, param: Any, value: Any) -> Any:
    """Return an expression with `value` substituted for the elements of a parameter, also through
    intermediate results.

        less[i] = ids[i] < 0; moved[i] = select(less[i], ids[i] + 50, ids[i]); table[moved[i]]
    ->
        select(value < 0, value + 50, value)
    """
    stores = find_all(function.body, tirx.BufferStore)

    def replace(load: Any) -> Any:
        if load.source.same_as(param):
            return value
        stored = [store.value for store in stores if store.buffer.same_as(load.source)]
        return _traced(function, stored[0], param, value) if len(stored) == 1 else load

    return tvm_ffi.structural_map(expression, (ir.TensorLoad, replace))


def _uses(expression: Any, variable: Any) -> bool:
    return any(found.same_as(variable) for found in find_all(expression, tirx.Var))


def _calculated_bits(function: tirx.PrimFunc, bits: int) -> int | None:
    """Return the narrowest type, in bits, of calculations with integers of at most `bits`: None without
    calculations, 0 for divisions and shifts.
    """
    least = None
    for node in find_all(function.body, *CALCULATIONS, *DIVISORS_AND_SHIFTS):
        dtype = str(node.ty.dtype)
        if not _is_integer(dtype) or tvm.DataType(dtype).bits > bits or not find_all(node, ir.TensorLoad):
            continue
        if isinstance(node, DIVISORS_AND_SHIFTS):
            return 0
        least = min(tvm.DataType(dtype).bits, least or bits)
    return least


def _is_integer(dtype: Any) -> bool:
    return str(dtype).startswith(("int", "uint", "bool"))
