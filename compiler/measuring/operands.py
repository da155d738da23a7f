"""The arguments and expected outputs for a workload's candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.s_tir import SBlock

from compiler.measuring.random_inputs import InputKind, nudge, parameters
from compiler.measuring.rounding import MAX_OTHER_NEIGHBOUR_SHARE, NUDGE_FACTOR, Rounding, is_float, reduced
from compiler.tir_nodes import find_all

# The initial value of outputs. A correct kernel overwrites it.
OUTPUT_FILL = 113


@dataclass(frozen=True)
class ReferencePrograms:
    """Trusted programs of a workload for tensors on the CPU: the workload itself, and a copy with nudged
    intermediate values (`nudge_recomputed`). `rounding` is the effect of the workload's rounding errors.
    """

    compute: Callable[..., object]
    compute_nudged: Callable[..., object]
    rounding: Rounding


class Operands:
    """A workload's arguments on a device, one set for each kind. Candidates share them, because creating them
    takes longer than running most candidates.
    """

    def __init__(self, function: tirx.PrimFunc, device: Any, reference: ReferencePrograms) -> None:
        self._parameters = parameters(function)
        self._device = device
        written = [store.buffer for store in find_all(function.body, tirx.BufferStore)]
        self._outputs = [
            i for i, param in enumerate(function.params) if any(param.same_as(buffer) for buffer in written)
        ]
        # Sums and products of subnormal numbers may be flushed to zero, so they test nothing.
        is_sum = any(reduced(block) > 1 for block in find_all(function.body, SBlock))
        self.kinds = (InputKind.ORDINARY, InputKind.LARGE) if is_sum else tuple(InputKind)
        self._tensors: dict[InputKind, list[Any]] = {}
        self._garbage = {
            i: np.full(self._parameters[i].shape, OUTPUT_FILL, self._parameters[i].dtype)
            for i in self._outputs
        }
        self._expected = {kind: self._compute(kind, reference) for kind in self.kinds}

    def arguments(self, kind: InputKind) -> list[Any]:
        """Return the tensors of all arguments, with garbage in the outputs."""
        if kind not in self._tensors:
            arrays = self._arrays(kind)
            self._tensors[kind] = [tvm.runtime.tensor(array, device=self._device) for array in arrays]
        for i, garbage in self._garbage.items():
            self._tensors[kind][i].copyfrom(garbage)
        return list(self._tensors[kind])

    def forget(self) -> None:
        """Make `arguments` create new tensors, because a wrong candidate may have written into the inputs."""
        self._tensors = {}

    def difference(self, kind: InputKind, arguments: Sequence[Any]) -> str:
        """Describe the first wrong output; "" if all are right."""
        for i, expected in zip(self._outputs, self._expected[kind], strict=True):
            if wrong := expected.difference(arguments[i].numpy()):
                return f"output {i} of {kind}: {wrong}"
        return ""

    def _arrays(self, kind: InputKind) -> list[NDArray[Any]]:
        """Return random arguments, the same at every call."""
        return kind.arrays(self._parameters)

    def _compute(self, kind: InputKind, reference: ReferencePrograms) -> list[Expected]:
        def outputs(compute: Callable[..., object], arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            compute(*tensors)
            return [tensors[i].numpy() for i in self._outputs]

        rounding, arrays = reference.rounding, self._arrays(kind)
        values = outputs(reference.compute, arrays)
        if not rounding.amplified or kind is InputKind.SUBNORMAL:
            return [Expected.of(each, None, rounding) for each in values]
        changed = [
            nudge(array, NUDGE_FACTOR * rounding.relative) if parameter.is_float else array
            for parameter, array in zip(self._parameters, arrays, strict=True)
        ]
        nudged = outputs(reference.compute_nudged, changed)
        return [Expected.of(each, other, rounding) for each, other in zip(values, nudged, strict=True)]


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
        with np.errstate(all="ignore"):
            if self.bounds is None:
                far = np.asarray(actual != self.values)
            else:
                is_near = np.abs(_computable(actual) - _computable(self.values)) <= self.bounds
                if is_near.all():
                    return ""
                far = ~(is_near | (actual == self.values) | np.isinf(self.bounds))
            # Two NaNs agree: square roots and logarithms of negative numbers are NaN.
            if far.any():
                far &= ~(np.isnan(actual) & np.isnan(self.values))
            if np.count_nonzero(far) <= self.exceptions:
                return ""
            worst = np.max(np.abs(actual[far].astype(np.float64) - self.values[far].astype(np.float64)))
        return f"{np.count_nonzero(far)} of {far.size} values differ, by up to {worst:.3g}"


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
