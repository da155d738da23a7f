"""The arguments and expected outputs for a workload's candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.s_tir import SBlock

from compiler.measuring.expected import Expected
from compiler.measuring.gpu_comparison import Accepted, GpuComparison
from compiler.measuring.random_inputs import InputKind, nudge, parameters
from compiler.measuring.rounding import NUDGE_FACTOR, Rounding
from compiler.tir_nodes import find_all, reduced

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

    def __init__(
        self,
        function: tirx.PrimFunc,
        device: Any,
        reference: ReferencePrograms,
        comparison: GpuComparison | None = None,
    ) -> None:
        """`comparison` compares outputs on the device. Without it, they are compared on the CPU."""
        self._comparison = comparison
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
        self._accepted: dict[tuple[InputKind, int], Accepted] = {}
        self._garbage = {
            i: tvm.runtime.tensor(
                np.full(self._parameters[i].shape, OUTPUT_FILL, self._parameters[i].dtype), device=device
            )
            for i in self._outputs
        }
        self._expected = {kind: self._compute(kind, reference) for kind in self.kinds}

    def arguments(self, kind: InputKind) -> list[Any]:
        """Return the tensors of all arguments, with garbage in the outputs."""
        if kind not in self._tensors:
            self._keep(kind, self._arrays(kind))
        for i, garbage in self._garbage.items():
            garbage.copyto(self._tensors[kind][i])
        return list(self._tensors[kind])

    def forget(self) -> None:
        """Make `arguments` create new tensors, because a wrong candidate may have written into the inputs."""
        self._tensors, self._accepted = {}, {}

    def difference(self, kind: InputKind, arguments: Sequence[Any]) -> str:
        """Describe the first wrong output; "" if all are right. An output that the device calls wrong is
        compared again on the CPU, whose verdict counts.
        """
        for i, expected in zip(self._outputs, self._expected[kind], strict=True):
            if self._comparison is not None:
                if (kind, i) not in self._accepted:
                    self._accepted[kind, i] = self._comparison.upload(expected)
                far = self._comparison.count_far(arguments[i], self._accepted[kind, i])
                if far <= expected.exceptions:
                    continue
            if wrong := expected.difference(arguments[i].numpy()):
                return f"output {i} of {kind}: {wrong}"
            # An earlier candidate may have written into the accepted values on the device.
            self._accepted.pop((kind, i), None)
        return ""

    def _arrays(self, kind: InputKind) -> list[NDArray[Any]]:
        """Return random arguments, the same at every call. Drawing takes longer than most candidates run."""
        return kind.arrays(self._parameters)

    def _keep(self, kind: InputKind, arrays: Sequence[NDArray[Any]]) -> None:
        self._tensors[kind] = [tvm.runtime.tensor(array, device=self._device) for array in arrays]

    def _compute(self, kind: InputKind, reference: ReferencePrograms) -> list[Expected]:
        def outputs(compute: Callable[..., object], arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
            tensors = [tvm.runtime.tensor(array) for array in arrays]
            compute(*tensors)
            return [tensors[i].numpy() for i in self._outputs]

        rounding, arrays = reference.rounding, self._arrays(kind)
        self._keep(kind, arrays)
        values = outputs(reference.compute, arrays)
        if not rounding.amplified or kind is InputKind.SUBNORMAL:
            return [Expected.of(each, None, rounding) for each in values]
        changed = [
            nudge(array, NUDGE_FACTOR * rounding.relative) if parameter.is_float else array
            for parameter, array in zip(self._parameters, arrays, strict=True)
        ]
        nudged = outputs(reference.compute_nudged, changed)
        return [Expected.of(each, other, rounding) for each, other in zip(values, nudged, strict=True)]
