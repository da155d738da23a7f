"""The expected values of an output, with the difference that rounding errors may make."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.measuring.rounding import MAX_OTHER_NEIGHBOUR_SHARE, Rounding, is_float


@dataclass(frozen=True)
class Expected:
    """The expected values of one output, the allowed difference of each (None: exact), and how many values
    may differ by more.
    """

    values: NDArray[Any]
    bounds: NDArray[Any] | None
    exceptions: int

    @classmethod
    def of(cls, values: NDArray[Any], nudged: NDArray[Any] | None, rounding: Rounding) -> Expected:
        """Derive the tolerances. `nudged` are the outputs for inputs changed by rounding errors."""
        rounds = rounding.relative > 0.0 and is_float(values.dtype)
        return cls(
            values,
            _rounded_down(rounding.bounds(values, nudged), _computable(values).dtype) if rounds else None,
            math.ceil(MAX_OTHER_NEIGHBOUR_SHARE * values.size) if rounding.has_steps else 0,
        )

    def difference(self, actual: NDArray[Any]) -> str:
        """Describe how many values differ too much and by how much; "" if not more than allowed."""
        far = self.far(actual)
        if np.count_nonzero(far) <= self.exceptions:
            return ""
        with np.errstate(all="ignore"):
            worst = np.max(np.abs(actual[far].astype(np.float64) - self.values[far].astype(np.float64)))
        return f"{np.count_nonzero(far)} of {far.size} values differ, by up to {worst:.3g}"

    def far(self, actual: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which values differ by more than their bounds."""
        with np.errstate(all="ignore"):
            if self.bounds is None:
                far = np.asarray(actual != self.values)
            else:
                is_near = self._is_near(actual)
                if is_near.all():
                    return ~is_near
                far = ~(is_near | (actual == self.values) | np.isinf(self.bounds))
            # Two NaNs agree: square roots and logarithms of negative numbers are NaN.
            return far & ~(np.isnan(actual) & np.isnan(self.values)) if far.any() else far

    def accepted(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the keys (`keys_of`) of the least and the greatest accepted value, for each value."""
        middle = keys_of(self.values)
        if self.bounds is None:
            return middle, middle
        with np.errstate(all="ignore"):
            values, bounds = self.values.astype(np.float64), self.bounds.astype(np.float64)
            least, greatest = (
                self._inner((values + way * bounds).astype(self.values.dtype), way) for way in (-1, 1)
            )
            ends = np.iinfo(middle.dtype)
            is_any = np.isinf(self.bounds)
            return np.where(is_any, ends.min, least), np.where(is_any, ends.max, greatest)

    def _inner(self, end: NDArray[Any], way: int) -> NDArray[Any]:
        """Return the keys of an interval's ends, each moved inwards if rounding has moved it outwards."""
        keys = keys_of(end)
        for inner in (np.where(np.isnan(end), keys, keys - way), keys_of(self.values)):
            keys = np.where(self._is_near(from_keys(keys, end.dtype)), keys, inner)
        return keys

    def _is_near(self, actual: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(np.abs(_computable(actual) - _computable(self.values)) <= self.bounds)


def keys_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return integers of the same size that are ordered like the values. Both zeros have one key, and all
    NaNs have the greatest. Integers are their own keys; unsigned ones keep only their equality.
    """
    bits = values.view(f"int{8 * values.dtype.itemsize}")
    if not is_float(values.dtype):
        return bits
    ends = np.iinfo(bits.dtype)
    return np.where(np.isnan(values), ends.max, np.where(bits < 0, ends.min - bits, bits)).astype(bits.dtype)


def from_keys(keys: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return the floats of these keys."""
    return np.where(keys < 0, np.iinfo(keys.dtype).min - keys, keys).astype(keys.dtype).view(dtype)


def _computable(floats: NDArray[Any]) -> NDArray[Any]:
    """Return floats of fewer than 32 bits as float32, in which their differences are exact enough."""
    return floats if floats.dtype.itemsize >= 4 else floats.astype(np.float32)


def _rounded_down(bounds: NDArray[np.float64], dtype: Any) -> NDArray[Any]:
    """Return bounds in the type of the differences that they limit: never more, because differences are
    rounded, too. Subnormal differences are exact."""
    with np.errstate(all="ignore"):
        info = np.finfo(dtype)
        wanted = np.where(bounds > info.smallest_normal, bounds * (1 - 2 * float(info.eps)), bounds)
        rounded = wanted.astype(dtype)
        return np.where(rounded > wanted, np.nextafter(rounded, dtype.type(0)), rounded)
