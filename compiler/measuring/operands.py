"""What candidates of one workload run on: random inputs, and the outputs that every one of them must give."""

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
# What outputs hold before a candidate runs: no correct kernel leaves it behind.
GARBAGE = 113
RELATIVE_TOLERANCE = {"float32": 1e-3, "float64": 1e-6, "float16": 2e-2, "bfloat16": 5e-2}


class Operands:
    """A workload's arguments on a device, kept from one candidate to the next: to make them takes longer than
    most candidates run."""

    def __init__(self, function: tirx.PrimFunc, device: Any, compute: Callable[..., object]) -> None:
        """`compute` is a trusted program of the workload, for tensors on the CPU."""
        self._specs = [(_shape(param), str(param.ty.dtype)) for param in function.params]
        self._device = device
        self._outputs = _written(function)
        self._tensors: list[Any] = []
        self._garbage: list[tuple[int, NDArray[Any]]] = []
        computed = [tvm.runtime.tensor(array) for array in self._arrays()]
        compute(*computed)
        self._expected = [(i, _Expected.of(computed[i].numpy())) for i in self._outputs]

    def place(self) -> list[Any]:
        """The tensors of all arguments; those of outputs hold garbage."""
        if not self._tensors:
            arrays = self._arrays()
            self._tensors = [tvm.runtime.tensor(array, device=self._device) for array in arrays]
            self._garbage = [(i, np.full_like(arrays[i], GARBAGE)) for i in self._outputs]
        for i, garbage in self._garbage:
            self._tensors[i].copyfrom(garbage)
        return list(self._tensors)

    def forget(self) -> None:
        """New tensors the next time: a candidate may have written into these what it should not."""
        self._tensors = []

    def difference(self, arguments: Sequence[Any]) -> str:
        """Empty when all outputs are as they must be, else where they aren't."""
        for i, expected in self._expected:
            if wrong := expected.difference(arguments[i].numpy()):
                return f"output {i}: {wrong}"
        return ""

    def _arrays(self) -> list[NDArray[Any]]:
        """The same at every call."""
        rng = np.random.default_rng(SEED)
        return [random_array(shape, dtype, rng) for shape, dtype in self._specs]


@dataclass(frozen=True)
class _Expected:
    """One output as it must be. `bounds` says by how much each value may differ; None where that is not all
    there is to it: types that must agree exactly, and values that are no numbers."""

    values: NDArray[Any]
    tolerance: float
    bounds: NDArray[Any] | None

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Expected:
        tolerance = RELATIVE_TOLERANCE.get(str(values.dtype), 0.0)
        if tolerance == 0.0 or not np.isfinite(values).all():
            return cls(values, tolerance, None)
        sizes = np.abs(_wide(values))
        return cls(values, tolerance, tolerance * (sizes + 0.1 * np.max(sizes, initial=0.0)))

    def difference(self, actual: NDArray[Any]) -> str:
        """Empty when there is none that matters."""
        if self.bounds is not None:
            with np.errstate(all="ignore"):
                if (np.abs(_wide(actual) - _wide(self.values)) <= self.bounds).all():
                    return ""
        return self._explained(actual.astype(np.float64))

    def _explained(self, actual: NDArray[np.float64]) -> str:
        """The whole truth, which takes ten times as long."""
        wanted = self.values.astype(np.float64)
        # Random inputs have no square root or logarithm: such values agree when both are nan.
        scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
        absolute = 0.1 * self.tolerance * scale
        far = ~np.isclose(actual, wanted, rtol=self.tolerance, atol=absolute, equal_nan=True)
        if not far.any():
            return ""
        worst = np.max(np.abs(actual[far] - wanted[far]))
        return f"{np.count_nonzero(far)} of {far.size} values differ, by up to {worst:.3g}"


def random_array(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    """Normal floats; integers are 0 or 1, which is in range wherever they are used as indices."""
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    """In a type whose roundings are far below the tolerance."""
    return values.astype(np.float64 if values.dtype == np.float64 else np.float32, copy=False)


def _written(function: tirx.PrimFunc) -> tuple[int, ...]:
    """Positions of the parameters that the function writes."""
    written: list[Any] = []

    def collect(store: Any) -> None:
        written.append(store.buffer)

    tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, collect)])
    return tuple(i for i, p in enumerate(function.params) if any(p.same_as(buffer) for buffer in written))


def _shape(parameter: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in parameter.ty.shape)
