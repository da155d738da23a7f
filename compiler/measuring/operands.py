"""Arguments for the candidates of a workload: random inputs, and the outputs that are expected of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from numpy.typing import NDArray
from tvm import tirx

SEED = 0
# Outputs hold this before a candidate runs. A correct kernel overwrites it.
GARBAGE = 113
RELATIVE_TOLERANCE = {"float32": 1e-3, "float64": 1e-6, "float16": 2e-2, "bfloat16": 5e-2}


class Operands:
    """A workload's arguments on a device. Candidates share them: creating them takes longer than most
    candidates run."""

    def __init__(self, function: tirx.PrimFunc, device: Any, compute: Callable[..., object]) -> None:
        """`compute` is a trusted program of the workload that takes tensors on the CPU."""
        self._specs = [
            (tuple(int(extent) for extent in param.ty.shape), str(param.ty.dtype))
            for param in function.params
        ]
        self._device = device
        written: list[Any] = []

        def collect(store: Any) -> None:
            written.append(store.buffer)

        tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, collect)])
        self._outputs = [
            i for i, param in enumerate(function.params) if any(param.same_as(buffer) for buffer in written)
        ]
        self._tensors: list[Any] = []
        self._garbage: list[tuple[int, NDArray[Any]]] = []
        computed = [tvm.runtime.tensor(array) for array in self._arrays()]
        compute(*computed)
        self._expected = [(i, _Expected.of(computed[i].numpy())) for i in self._outputs]

    def place(self) -> list[Any]:
        """Return the tensors of all arguments, with garbage in the outputs."""
        if not self._tensors:
            arrays = self._arrays()
            self._tensors = [tvm.runtime.tensor(array, device=self._device) for array in arrays]
            self._garbage = [(i, np.full_like(arrays[i], GARBAGE)) for i in self._outputs]
        for i, garbage in self._garbage:
            self._tensors[i].copyfrom(garbage)
        return list(self._tensors)

    def forget(self) -> None:
        """Have `place` create new tensors: a wrong candidate may have written into the inputs."""
        self._tensors = []

    def difference(self, arguments: Sequence[Any]) -> str:
        """Return the first output that is wrong and how; empty when all are right."""
        for i, expected in self._expected:
            if wrong := expected.difference(arguments[i].numpy()):
                return f"output {i}: {wrong}"
        return ""

    def _arrays(self) -> list[NDArray[Any]]:
        """Return random arguments, the same at every call."""
        rng = np.random.default_rng(SEED)
        return [random_array(shape, dtype, rng) for shape, dtype in self._specs]


@dataclass(frozen=True)
class _Expected:
    """The expected values of one output. `bounds` says by how much each value may differ; it is None for
    types that must agree exactly and for values among which are nan or infinity."""

    values: NDArray[Any]
    tolerance: float
    bounds: NDArray[Any] | None

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Expected:
        tolerance = RELATIVE_TOLERANCE.get(str(values.dtype), 0.0)
        if tolerance == 0.0 or not np.isfinite(values).all():
            return cls(values, tolerance, None)
        sizes = np.abs(_widen(values))
        return cls(values, tolerance, tolerance * (sizes + 0.1 * np.max(sizes, initial=0.0)))

    def difference(self, actual: NDArray[Any]) -> str:
        """Return how many values differ too much and by how much; empty when none does."""
        if self.bounds is not None:
            with np.errstate(all="ignore"):
                if (np.abs(_widen(actual) - _widen(self.values)) <= self.bounds).all():
                    return ""
        # np.isclose explains more, and takes ten times as long.
        actual, wanted = actual.astype(np.float64), self.values.astype(np.float64)
        # Square roots and logarithms of random inputs may be nan: two values agree when both are nan.
        scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        absolute = 0.1 * self.tolerance * scale
        far = ~np.isclose(actual, wanted, rtol=self.tolerance, atol=absolute, equal_nan=True)
        if not far.any():
            return ""
        worst = np.max(np.abs(actual[far] - wanted[far]))
        return f"{np.count_nonzero(far)} of {far.size} values differ, by up to {worst:.3g}"


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """Return normally distributed floats, or integers 0 and 1, which are in range as indices of anything."""
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _widen(values: NDArray[Any]) -> NDArray[Any]:
    """Convert to a type whose rounding errors are far below the tolerance."""
    return values.astype(np.float64 if values.dtype == np.float64 else np.float32, copy=False)
